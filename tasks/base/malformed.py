"""Faults of a model's files, each in a sentence of its own with a remedy: JSON that isn't, weights that are cut off, an
index and its shards that differ, and a config that no model can be built from.

The libraries that read these files refuse them too, but name neither the file nor the field, nor what to do.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from models.pretrained import INDEX, WEIGHTS
from storage.errors import SourceError
from storage.shards.lines import parse_json

AGAIN = "Get the file again: it may have been changed, or its download may have stopped early."
BELONGS = "Correct config.json, or use the one that belongs to the weights."
SAVE_TOKENIZER = "Get it again, or write it by AutoTokenizer.from_pretrained(…).save_pretrained(…)."
POINTER, FETCH = b"version https://git-lfs", "Fetch the file itself: git lfs pull."
CONFIGS = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
LARGEST_CONFIG = 16 << 20  # bytes. The largest known ones have 1 MiB
LARGEST_HEADER = 100 << 20  # bytes of a safetensors header, which its library reads at most
# Fields of transformers' configs that are whole numbers above 0 in every architecture, GPT-2's names among them
COUNTS = {
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "vocab_size", "max_position_embeddings", "n_embd", "n_layer", "n_head", "n_positions", "n_inner"),
}
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
POSITIVE = ("rope_theta", "factor", "original_max_position_embeddings")  # numbers of rotary positions
ROPES = ("rope_parameters", "rope_scaling")
WIDTH, HEADS = ("hidden_size", "n_embd"), ("num_attention_heads", "n_head")
TOKENIZERS = ("BPE", "Unigram", "WordLevel", "WordPiece")  # of the library `tokenizers`


def read_json(path: Path, what: str, largest: int | None = LARGEST_CONFIG) -> dict[str, Any]:
    """The object in a JSON file, empty for a missing file. `what` names the model in errors. Raises SourceError."""
    if not path.is_file():
        return {}
    if largest is not None and path.stat().st_size > largest:
        raise SourceError(f"{path.name} of the {what} has {path.stat().st_size:,} bytes.", AGAIN)
    data = path.read_bytes()
    refuse_pointer(path, data, what)
    try:
        content = parse_json(data)
    except ValueError as error:
        raise SourceError(f"{path.name} of the {what} is not JSON: {error}.", AGAIN) from error
    if not isinstance(content, dict):
        raise SourceError(f"{path.name} of the {what} is not a JSON object.", AGAIN)
    return content


def check_json(folder: Path, what: str) -> None:
    """Raises SourceError for a file of the config or the tokenizer that is not a JSON object, and for a tokenizer.json
    without the parts of a tokenizer."""
    for name in CONFIGS:
        read_json(folder / name, what)
    path = folder / "tokenizer.json"
    content = read_json(path, what, None)
    if not path.is_file():
        read_json(folder / "vocab.json", what, None)
        return
    model = content.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(content.get("added_tokens"), list):
        part = "added_tokens, a list" if isinstance(model, dict) else "model, an object"
        raise SourceError(f"tokenizer.json of the {what} lacks {part}.", SAVE_TOKENIZER)
    if kind is not None and kind not in TOKENIZERS:
        raise SourceError(
            f"tokenizer.json of the {what} sets the type of its model to {kind!r}, which is none of "
            f"{', '.join(TOKENIZERS)}.",
            SAVE_TOKENIZER,
        )


def check_whole(folder: Path, what: str) -> None:
    """Raises SourceError for a file of weights that its header doesn't describe to the last byte, and for an index that
    doesn't fit the files. Reads only headers."""
    named = _index(folder, what)
    names = {file: _tensors(folder / file, what) for file in sorted({*named.values()} or {WEIGHTS})}
    for tensor, file in named.items():
        if tensor not in names[file]:
            raise SourceError(
                f"{INDEX} of the {what} says that {tensor} is in {file}, which doesn't have it.",
                "Get the index and all files again, from one version of the model.",
            )


def _index(folder: Path, what: str) -> dict[str, str]:
    """The file of each tensor. Empty for a single file. Raises SourceError."""
    if not (folder / INDEX).is_file():
        parts = sorted(path.name for path in folder.glob("model*.safetensors"))
        if not (folder / WEIGHTS).is_file():
            raise SourceError(f"{parts[0]} is a part of the {what}, but {INDEX} is missing.", "Get that file too.")
        return {}
    index = read_json(folder / INDEX, what, None)
    named = index.get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(name, str) for name in named.values()):
        raise SourceError(f"{INDEX} of the {what} lacks weight_map, the file of each tensor.", AGAIN)
    if not isinstance(index.get("metadata"), dict):
        raise SourceError(f"{INDEX} of the {what} lacks metadata, an object.", AGAIN)
    for name in sorted({*named.values()}):
        if Path(name).name != name or not (folder / name).is_file():
            raise SourceError(
                f"{INDEX} of the {what} names {name}, which is not a file in the folder.", "Get that file too."
            )
    if (folder / WEIGHTS).is_file() and {*named.values()} != {WEIGHTS}:
        raise SourceError(
            f"The {what} has two sets of weights, {WEIGHTS} and those of {INDEX}.", "Remove the one that is not meant."
        )
    return named


def _tensors(path: Path, what: str) -> set[str]:
    """The names of a file's tensors. Raises SourceError for a file that isn't whole."""
    from safetensors import SafetensorError, safe_open

    size = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(64)
        refuse_pointer(path, begin, what)
        length = int.from_bytes(begin[:8], "little")
        if len(begin) >= 8 and length > LARGEST_HEADER:
            raise SourceError(f"{path.name} of the {what} is not a safetensors file.", AGAIN)
        if size < 8 + length:
            raise SourceError(f"{path.name} of the {what} is cut off within its header, after {size:,} bytes.", AGAIN)
        file.seek(8)
        data = file.read(length)
    try:
        header = parse_json(data)
        tensors = {name: each for name, each in header.items() if name != "__metadata__"}
        whole = 8 + length + max((each["data_offsets"][1] for each in tensors.values()), default=0)
    except (ValueError, AttributeError, LookupError, TypeError) as error:
        raise SourceError(f"The header of {path.name} of the {what} describes no tensors.", AGAIN) from error
    if size != whole:
        how = "is cut off" if size < whole else "doesn't fit its header"
        raise SourceError(f"{path.name} of the {what} {how}: it has {size:,} bytes in place of {whole:,}.", AGAIN)
    try:
        with safe_open(path, framework="np"):
            return {*tensors}
    except SafetensorError as error:
        detail = str(error).rpartition("header: ")[2].split(", expected one of")[0]
        raise SourceError(f"The header of {path.name} of the {what} is wrong: {detail}.", AGAIN) from error


def refuse_pointer(path: Path, begin: bytes, what: str) -> None:
    """Raises SourceError for a file that begins as a pointer of Git LFS, which a clone without LFS leaves."""
    if begin.startswith(POINTER):
        raise SourceError(f"{path.name} of the {what} is not there: a pointer of Git LFS is in its place.", FETCH)


def check_numbers(config: Mapping[str, Any], what: str) -> None:
    """Raises SourceError for a count or a number of rotary positions that isn't above 0, in the config or in those that
    are nested in it."""
    for name, value in config.items():
        if isinstance(value, dict):
            check_numbers(value, what)
        elif isinstance(value, list) or value is None:
            continue  # a count for each layer, or the architecture's own
        elif name in COUNTS and not (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            raise SourceError(
                f"config.json of the {what} sets {name} to {value!r}, not a whole number above 0.", BELONGS
            )
        elif name in POSITIVE and not _is_positive(value):
            raise SourceError(f"config.json of the {what} sets {name} to {value!r}, not a number above 0.", BELONGS)


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def fault_of(config: Mapping[str, Any], error: BaseException, what: str) -> SourceError | None:
    """Why transformers can't build a model from a config, if it is something that the config says."""
    cause, said = str(error), f"config.json of the {what}"
    for sentence, remedy in _faults(config, cause):
        return SourceError(f"{said} {sentence}.", remedy)
    return None


def _faults(config: Mapping[str, Any], cause: str) -> Iterator[tuple[str, str]]:
    from transformers import CONFIG_MAPPING
    from transformers.activations import ACT2FN
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = config.get("model_type")
    if kind is None:
        yield "lacks model_type, the architecture", BELONGS
        return
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        known = "Update transformers if it is newer than this version, or choose another model."
        yield f"sets model_type to {kind!r}, which transformers doesn't know", known
        return
    width, heads = (
        next((name for name in names if isinstance(config.get(name), int)), None) for names in (WIDTH, HEADS)
    )
    if width and heads and config[width] % config[heads]:
        yield f"sets {width} to {config[width]:,}, which {heads}, {config[heads]:,}, doesn't divide", BELONGS
    for name in ROPES:
        if (positions := config.get(name)) is not None and not isinstance(positions, dict):
            yield f"sets {name} to {positions!r}, not an object", BELONGS
        for each in _positions(positions):
            method = each.get("rope_type", each.get("type"))
            methods = sorted({*ROPE_INIT_FUNCTIONS, "default"})
            if method is not None and method not in methods:
                yield f"sets rope_type in {name} to {method!r}, which is none of {', '.join(methods)}", BELONGS
            if (lacking := re.search(r"Missing required keys .*: \{(.*)\}", cause)) is not None:
                keys = ", ".join(sorted(re.findall(r"\w+", lacking[1])))
                yield f"sets rope_type in {name} to {method!r} without {keys}", BELONGS
    for name in ("hidden_act", "activation_function", "hidden_activation"):
        if isinstance(act := config.get(name), str) and act not in ACT2FN:
            yield f"sets {name} to {act!r}, which transformers doesn't know", BELONGS
    if "even rotary dimension" in cause and isinstance(config.get("head_dim"), int):
        yield f"sets head_dim to {config['head_dim']}, an odd number, but rotary positions come in pairs", BELONGS
    for name in ("dtype", "torch_dtype"):
        if name in config and re.search(rf"has no attribute '{re.escape(str(config[name]))}'", cause):
            yield f"sets {name} to {config[name]!r}, which torch doesn't know", BELONGS
    if (refused := re.search(r"for field '(\w+)'", cause)) is not None and refused[1] in config:
        shown = json.dumps(config[refused[1]])
        yield f"sets {refused[1]} to {shown[:80]}, which a {kind} doesn't take", BELONGS


def lacking(config: Any, settings: Mapping[str, Any]) -> str:
    """The sizes that config.json, which has these settings, leaves to transformers' `config`, as a sentence."""
    names = {name: config.attribute_map.get(name, name) for name in SIZES if hasattr(config, name)}
    left = [f"{own}, so it is {getattr(config, name)}" for name, own in names.items() if not {name, own} & {*settings}]
    return f" config.json lacks {'; '.join(left)}." if left and "text_config" not in settings else ""


def _positions(value: Any) -> Iterator[Mapping[str, Any]]:
    """The settings of rotary positions: one, or one for each kind of layer."""
    if isinstance(value, dict):
        nested = [each for each in value.values() if isinstance(each, dict)]
        yield from nested or [value]
