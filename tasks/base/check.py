"""What can't be a base, refused by name: code, pickles, quantized weights, and what is no decoder of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from models.finite import not_finite
from models.pretrained import check_shards, context_of, load_config, load_pretrained
from storage.errors import SourceError
from storage.shards.lines import parse_json

FULL = ("F64", "F32", "F16", "BF16")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")
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
    if not (folder / "config.json").is_file():
        found = "an adapter without its base model" if (folder / "adapter_config.json").is_file() else "no model"
        raise SourceError(f"The {what} is {found}: {folder} has no config.json.", remedy)
    config = _json(folder / "config.json", what, remedy)
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
    return loaded(lambda: load_config(folder), f"config.json of the {what}", remedy)


def check_model(folder: Path) -> Any:
    """The config of a model that transformers builds by itself, with every weight in the files and no other.

    Nothing but the headers is read. Raises SourceError.
    """
    config = load_config(folder)
    types = loaded(lambda: _types_of(folder), "the model of the base")
    if wrong := next((name for name, kind in types.items() if kind not in FULL), None):
        raise SourceError(
            f"The base is quantized, and can't be trained as it is: {wrong} is of type {types[wrong]}.",
            "Take the model in full precision.",
        )
    options = {"device_map": "meta", "output_loading_info": True, "ignore_mismatched_sizes": True}
    with quietly():  # its own report names files and not what to do
        _, report = loaded(lambda: load_pretrained(folder, **options), "the model of the base")
    for what in ("missing", "unexpected", "mismatched"):
        names = sorted(str(name[0] if isinstance(name, tuple) else name) for name in report.get(f"{what}_keys", ()))
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise SourceError(
                f"The weights of the base are not those of a {config.model_type}: {what} are "
                f"{', '.join(names[:3])}{more}.",
                SAFE,
            )
    return config


def check_weights(folder: Path) -> None:
    """Raises SourceError for a weight that is NaN or infinite. Reads all weights."""
    if found := not_finite(folder):
        raise SourceError(
            f"The base computes nothing: {found}.", "Get it again, or choose another: nothing can be learned from it."
        )


def _types_of(folder: Path) -> dict[str, str]:
    """The types of the weights: integers and 8-bit numbers have scales that nothing here knows of."""
    from safetensors import safe_open

    types: dict[str, str] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if name.endswith(".weight")]  # noqa: SIM118
            types |= {name: file.get_slice(name).get_dtype() for name in names}
    return types


def loaded(load: Callable[[], Loaded], what: str, remedy: str = SAFE) -> Loaded:
    """What transformers loads. Raises SourceError for what it can't."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    try:
        return load()
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RuntimeError, ImportError,
        StrictDataclassError, SafetensorError,
    ) as error:  # fmt: skip
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
    try:
        found = parse_json(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise SourceError(f"{path.name} of the {what} is not JSON: {error}.", remedy) from error
    if not isinstance(found, dict):
        raise SourceError(f"{path.name} of the {what} is no object.", remedy)
    return found
