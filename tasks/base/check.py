"""What can't be a base, refused by name: code, pickles, quantized weights, a config of far more than the weights have,
and what is no decoder of transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from models.pretrained import StoredTensor, check_shards, context_of, load_config, load_pretrained, stored_tensors
from storage.errors import SourceError
from storage.shards.lines import parse_json

FULL = ("F64", "F32", "F16", "BF16")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")
ADAPTER = "adapter_config.json"
LARGEST_JSON = 16 << 20  # bytes of a config; the largest of known models have one
# Of a config: what a number of parts is called, and what a width is. Each part has a tensor, and each width is one's
PARTS = re.compile(r"^(num|n)_.*(layer|expert|block)|(layers|depth)$")
WIDTHS = re.compile(r"size|dim|width|head|embd|inner|channels|rank|group|^d_|^ffn")
MOST_PARTS, WIDEST, MOST_EXPERTS = 1 << 10, 1 << 20, 1 << 17  # where the weights have fewer
MOST_BUFFERS = 1 << 28  # numbers that a model computes when it is built
SAFE = "Save it in the format of transformers: AutoModelForCausalLM.from_pretrained(…).save_pretrained(…)."
Loaded = TypeVar("Loaded")


def check_files(folder: Path) -> None:
    """Refuse a folder without safetensors, and a config that names code of its own or that transformers doesn't know.
    Raises SourceError."""
    known = check_format(folder, "base", SAFE)
    if known.is_encoder_decoder:
        raise SourceError("The base is an encoder and a decoder; only a decoder alone can be one.", "Choose another.")
    try:
        context_of(known)
    except ValueError as error:
        raise SourceError(
            f"The base, a {known.model_type}, does not say how long a text may be: {error}.",
            "Choose another: a model without positions, such as Bloom or Mamba, can't be one.",
        ) from error


def check_format(folder: Path, what: str, remedy: str) -> Any:
    """The config of a folder in the format of transformers, of `what` it is, with weights in full precision as
    safetensors and no code. Raises SourceError, with the `remedy` for one that has no such format."""
    adapter = (folder / ADAPTER).is_file()
    if not (folder / "config.json").is_file():
        found = "an adapter without its base model" if adapter else "no model"
        raise SourceError(f"The {what} is {found}: {folder} has no config.json.", remedy)
    if adapter:  # transformers adds it where PEFT is installed, and nothing else does
        raise SourceError(
            f"The {what} is a model and an adapter over it: {ADAPTER} lies beside config.json.",
            f"Merge the adapter into the model, or remove {ADAPTER} if it is not part of it.",
        )
    config = _json(folder / "config.json", what, remedy)
    if "transformers_weights" in config:
        raise SourceError(
            f"config.json of the {what} names a file of weights of its own, transformers_weights.", remedy
        )
    for name in ("config.json", "tokenizer_config.json"):
        if "auto_map" in _json(folder / name, what, remedy):
            raise SourceError(
                f"The {what} has code of its own: auto_map in {name}. It is not run.",
                f"Remove auto_map if transformers knows the architecture itself; else choose another {what}.",
            )
    if "quantization_config" in config:
        raise SourceError(f"The {what} is quantized, and can't be used as it is.", "Take the model in full precision.")
    if not any(folder.glob("model*.safetensors")):
        pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        where = f"only in {', '.join(pickles)}, which is not opened: a pickle can run code" if pickles else "nowhere"
        raise SourceError(f"The {what} has its weights {where}.", remedy)
    loaded(lambda: check_shards(folder), f"the weights of the {what}", remedy)
    check_sizes(config, loaded(lambda: stored_tensors(folder), f"the weights of the {what}", remedy), what)
    return loaded(lambda: load_config(folder), f"config.json of the {what}", remedy)


def check_sizes(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor], what: str) -> None:
    """Raises SourceError for a config of far more parts, or of far wider ones, than the weights have: to build such a
    model only to find out would take all time or memory that there is."""
    parts = max(MOST_PARTS, len(tensors))
    widest = max([WIDEST, *(size for tensor in tensors.values() for size in tensor.shape)])
    layers, experts = 1, 1
    for name, number in _numbers(config):
        most = parts if PARTS.search(name) else widest if WIDTHS.search(name) else number
        if number > most:
            raise SourceError(
                f"config.json of the {what} has {name} {number:,}, and no weights for so many.",
                "Take the config.json that belongs to the weights.",
            )
        layers = max(layers, number if "layer" in name and PARTS.search(name) else 1)
        experts = max(experts, number if "expert" in name and PARTS.search(name) else 1)
    if layers * experts > max(MOST_EXPERTS, len(tensors)):
        raise SourceError(
            f"config.json of the {what} has {layers:,} layers of {experts:,} experts, and no weights for so many.",
            "Take the config.json that belongs to the weights.",
        )


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield name, value


def check_model(folder: Path) -> Any:
    """The config of a model that transformers builds by itself, with every weight in the files and no other.

    Nothing but the headers is read. Raises SourceError.
    """
    config = load_config(folder)
    tensors = loaded(lambda: stored_tensors(folder), "the model of the base")
    kinds = {name: tensor.kind for name, tensor in tensors.items() if name.endswith(".weight")}
    if wrong := next((name for name, kind in kinds.items() if kind not in FULL), None):
        raise SourceError(
            f"The base is quantized, and can't be trained as it is: {wrong} is of type {kinds[wrong]}.",
            "Take the model in full precision.",
        )
    options = {"device_map": "meta", "output_loading_info": True, "ignore_mismatched_sizes": True}
    with quietly():  # its own report names files and not what to do
        model, report = loaded(lambda: load_pretrained(folder, **options), "the model of the base")
    for what in ("missing", "unexpected", "mismatched"):
        names = sorted(str(name[0] if isinstance(name, tuple) else name) for name in report.get(f"{what}_keys", ()))
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise SourceError(
                f"The weights of the base are not those of a {config.model_type}: {what} are "
                f"{', '.join(names[:3])}{more}.",
                SAFE,
            )
    computed = sum(buffer.numel() for buffer in model.buffers())
    if computed > max(MOST_BUFFERS, sum(tensor.numbers for tensor in tensors.values())):
        raise SourceError(
            f"The base computes {computed:,} numbers when it is built, more than it has weights.",
            "Lower what says in its config.json how long a text may be.",
        )
    return config


def loaded(load: Callable[[], Loaded], what: str, remedy: str = SAFE) -> Loaded:
    """What transformers loads. Raises SourceError for what it can't."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    try:
        return load()
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
        ImportError,
        StrictDataclassError,
        SafetensorError,
    ) as error:
        told = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        first = told.strip().split("\n")[0].rstrip(".")
        raise SourceError(f"transformers can't load {what}: {first}.", remedy) from error


@contextmanager
def quietly() -> Iterator[None]:
    """Without transformers' log and progress bars."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _json(path: Path, what: str, remedy: str) -> dict[str, Any]:
    if path.is_file() and path.stat().st_size > LARGEST_JSON:
        raise SourceError(f"{path.name} of the {what} has {path.stat().st_size:,} bytes.", remedy)
    try:
        found = parse_json(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise SourceError(f"{path.name} of the {what} is not JSON: {error}.", remedy) from error
    if not isinstance(found, dict):
        raise SourceError(f"{path.name} of the {what} is no object.", remedy)
    return found
