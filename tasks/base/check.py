"""Refuses what can't be a base, by name: code, pickles, quantized weights, a config far larger than the weights, and
models that are not decoders of transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from models.kernels.virtual_tokens import FIELD
from models.pretrained import StoredTensor, context_of, load_config, load_pretrained, stored_tensors
from storage.errors import SourceError
from tasks.base.malformed import AGAIN, BELONGS, check_json, check_numbers, check_whole, fault_of, lacking, read_json

FULL = ("F64", "F32", "F16", "BF16")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")
ADAPTER = "adapter_config.json"
# Names of config fields that count parts, and that are widths. Each part has a tensor, and each width is a tensor's
PARTS = re.compile(r"^(num|n)_.*(layer|expert|block)|(layers|depth)$")
WIDTHS = re.compile(r"size|dim|width|head|embd|inner|channels|rank|group|^d_|^ffn")
MOST_PARTS, WIDEST, MOST_EXPERTS = 1 << 10, 1 << 20, 1 << 17  # or as many as the weights have, if more
MOST_BUFFERS = 1 << 28  # numbers that a model may compute when it is built, or as many as its weights
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
SAFE = "Save it in the format of transformers: AutoModelForCausalLM.from_pretrained(…).save_pretrained(…)."
Loaded = TypeVar("Loaded")


def check_files(folder: Path, what: str = "base") -> None:
    """Raises SourceError for a folder without safetensors, for a config that names its own code, and for one that
    transformers doesn't know or that isn't a decoder's."""
    config = check_format(folder, what, SAFE)
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise SourceError(
            f"The {what} has no tokenizer: {folder} has none of {', '.join(VOCABULARIES)}.",
            "Save it into the same folder: AutoTokenizer.from_pretrained(…).save_pretrained(…).",
        )
    if config.is_encoder_decoder:
        raise SourceError(f"The {what} has an encoder, and must be a decoder only.", "Choose another.")
    try:
        context_of(config)
    except ValueError as error:
        raise SourceError(
            f"The config of the {what}, a {config.model_type}, doesn't limit the length of a text: {error}.",
            "Choose another: models without positions, such as Bloom or Mamba, can't be a base.",
        ) from error


def check_format(folder: Path, what: str, remedy: str) -> Any:
    """The config of a folder in the format of transformers, with weights in full precision as safetensors and without
    code. `what` names the model in errors. Raises SourceError, with the `remedy` for another format."""
    adapter = (folder / ADAPTER).is_file()
    if not (folder / "config.json").is_file():
        kind = "an adapter without its base model" if adapter else "not a model"
        raise SourceError(f"The {what} is {kind}: {folder} has no config.json.", remedy)
    if adapter:  # transformers would apply it if PEFT is installed, and other programs wouldn't
        raise SourceError(
            f"The {what} is a model and an adapter over it: {ADAPTER} is beside config.json.",
            f"Merge the adapter into the model, or remove {ADAPTER} if it is not part of it.",
        )
    check_json(folder, what)
    config = read_json(folder / "config.json", what)
    if "transformers_weights" in config:
        raise SourceError(f"config.json of the {what} names another file of weights, in transformers_weights.", remedy)
    for name in ("config.json", "tokenizer_config.json"):
        if "auto_map" in read_json(folder / name, what):
            raise SourceError(
                f"The {what} has its own code, named by auto_map in {name}, which is never run.",
                f"Remove auto_map if transformers itself knows the architecture, or choose another {what}.",
            )
    if FIELD in config:
        raise SourceError(
            f"The {what} has virtual tokens before every text, which no stage can train further.",
            f"Use the {what} that they were trained over, or train a LoRA adapter in their place.",
        )
    if "quantization_config" in config:
        raise SourceError(f"The {what} is quantized, and can't be used as it is.", "Use the model in full precision.")
    if not any(folder.glob("model*.safetensors")):
        pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        state = f"only in {', '.join(pickles)}, which is not opened: a pickle can run code" if pickles else "missing"
        raise SourceError(f"The weights of the {what} are {state}.", remedy)
    check_whole(folder, what)
    check_numbers(config, what)
    check_sizes(config, loaded(lambda: stored_tensors(folder), f"the weights of the {what}", AGAIN), what)
    return built(lambda: load_config(folder), config, f"config.json of the {what}", what)


def check_sizes(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor], what: str) -> None:
    """Raises SourceError for a config with far more or far wider parts than the weights have. Building such a model
    only to find out could take all memory, or forever."""
    parts = max(MOST_PARTS, len(tensors))
    widest = max([WIDEST, *(size for tensor in tensors.values() for size in tensor.shape)])
    layers, experts = 1, 1
    for name, number in _numbers(config):
        most = parts if PARTS.search(name) else widest if WIDTHS.search(name) else number
        if number > most:
            raise SourceError(
                f"config.json of the {what} sets {name} to {number:,}, far more than the weights have.",
                "Use the config.json that belongs to the weights.",
            )
        layers = max(layers, number if "layer" in name and PARTS.search(name) else 1)
        experts = max(experts, number if "expert" in name and PARTS.search(name) else 1)
    if layers * experts > max(MOST_EXPERTS, len(tensors)):
        raise SourceError(
            f"config.json of the {what} has {layers:,} layers of {experts:,} experts, far more than the weights have.",
            "Use the config.json that belongs to the weights.",
        )


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield name, value


def check_model(folder: Path) -> Any:
    """The config of a model that transformers builds without further code, from exactly the weights in the files.

    Reads only the headers. Raises SourceError.
    """
    config = load_config(folder)
    tensors = loaded(lambda: stored_tensors(folder), "the model of the base")
    kinds = {name: tensor.kind for name, tensor in tensors.items() if name.endswith(".weight")}
    if wrong := next((name for name, kind in kinds.items() if kind not in FULL), None):
        raise SourceError(
            f"The base is quantized, and can't be trained as it is: {wrong} is of type {kinds[wrong]}.",
            "Use the model in full precision.",
        )
    options = {"device_map": "meta", "output_loading_info": True, "ignore_mismatched_sizes": True}
    settings = read_json(folder / "config.json", "base")
    with quietly():  # transformers' own report doesn't say what to do
        model, report = built(lambda: load_pretrained(folder, **options), settings, "the model of the base", "base")
    for what in ("missing", "unexpected", "mismatched"):
        names = sorted(str(name[0] if isinstance(name, tuple) else name) for name in report.get(f"{what}_keys", ()))
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise SourceError(
                f"The weights of the base are not those of a {config.model_type}: {what} are "
                f"{', '.join(names[:3])}{more}.{lacking(config, settings)}",
                f"Use the config.json and the weights of one model. {SAFE}",
            )
    computed = sum(buffer.numel() for buffer in model.buffers())
    if computed > max(MOST_BUFFERS, sum(tensor.numbers for tensor in tensors.values())):
        raise SourceError(
            f"Building the base computes {computed:,} numbers, which is more than it has weights.",
            "Lower the maximum length of a text in its config.json.",
        )
    return config


def built(load: Callable[[], Loaded], config: Mapping[str, Any], whole: str, what: str) -> Loaded:
    """The result of `load`, which builds something from a model's config. Raises SourceError, if it fails, for what
    the config says wrong."""
    try:
        return loaded(load, whole, BELONGS)
    except SourceError as error:
        if (fault := fault_of(config, error.__cause__ or error, what)) is not None:
            raise fault from error
        raise


def loaded(load: Callable[[], Loaded], what: str, remedy: str = SAFE) -> Loaded:
    """The result of `load`, which calls transformers. Raises SourceError if transformers can't load `what`."""
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
        message = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        lines = message.strip().split("\n")
        # The first line may only announce the cause
        first = " ".join(" ".join(lines[: 2 if lines[0].rstrip().endswith(":") else 1]).split()).rstrip(".")
        raise SourceError(f"transformers can't load {what}: {first}.", remedy) from error


@contextmanager
def quietly() -> Iterator[None]:
    """Turns off transformers' log and progress bars."""
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
