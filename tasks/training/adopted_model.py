"""Checks a folder made elsewhere before it is adopted as the artifact of a stage that trains a model."""

from __future__ import annotations

from pathlib import Path

from models.pretrained import check_shards
from models.tokenizer import NEEDED_FILES, load_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from storage.errors import DamagedArtifact, TokenizerMismatch
from storage.shards.lines import parse_json
from tasks.training.model_folder import check_tokenizer

LONGEST_HEADER = 100_000_000  # bytes, as in the safetensors library


def check_model(folder: Artifact, tokenizer: Path) -> None:
    """Check that model/ has a config that transformers loads, weights as safetensors, and the tokenizer of the folder
    `tokenizer`, and that the model has all ids of that.

    Raises DamagedArtifact for missing or unreadable files, TokenizerMismatch for another vocabulary.
    """
    model = folder.path / "model"
    for name in ("config.json", *NEEDED_FILES):
        if not (model / name).is_file():
            raise DamagedArtifact(f"model/{name} is missing.", "Save the model in the format of transformers.")
    _check_weights(folder)
    size = _vocab_size(model)
    check_tokenizer(model, expected=tokenizer_digest(tokenizer))
    known = len(load_tokenizer(model))
    if size is not None and size < known:
        raise TokenizerMismatch(
            f"model/config.json has {size:,} ids, but the tokenizer has {known:,}.", "Train it with this vocabulary."
        )


def _vocab_size(model: Path) -> int | None:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        if not isinstance(parse_json((model / "config.json").read_bytes()), dict):
            raise ValueError("it is not a JSON object")
        config = AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
        size = getattr(config, "vocab_size", None)
        return None if size is None else int(size)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, StrictDataclassError) as error:
        raise DamagedArtifact(f"model/config.json can't be loaded: {error}.", "Save the model again.") from error


def _check_weights(folder: Artifact) -> None:
    """Check that each safetensors file is whole and has weights. Such a file consists of the length of a header, the
    header as JSON, and the data."""
    try:
        check_shards(folder.path / "model")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedArtifact(f"The index of the weights can't be used: {error}.", "Save the model again.") from error
    for path in folder.files("model/*.safetensors"):
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = parse_json(file.read(min(length, LONGEST_HEADER)))
            ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            raise DamagedArtifact(f"model/{path.name} is not in the format safetensors.", "Save it again.") from error
        if path.stat().st_size != 8 + length + max(ends, default=-1):
            raise DamagedArtifact(f"model/{path.name} lacks weights, or a part of them.", "Save it again.")
