"""The files of a model that embeds: known by their digests, and refused where they would be code, pickles or half a
model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.pretrained import load_encoder
from storage.errors import SourceError
from tasks.base.config import BaseConfig
from tasks.base.source import fingerprint
from tasks.filter.classifier.source import check_saved

SAFE = "Save it as AutoModel.from_pretrained(…).save_pretrained(…) does, with its tokenizer."
POOLER = "pooler."  # weights of BERT and its like that a mean over the tokens does not need


def fingerprints(config: BaseConfig) -> dict[str, str]:
    """Digests of the model's files, or its revision. Raises SourceError."""
    if config.folder is not None and not (folder := Path(config.folder).expanduser()).is_dir():
        raise SourceError(f"There is no folder {folder} with a model.", "Check the path under `filter.semantic`.")
    return {name.replace("base/", "encoder/", 1): digest for name, digest in fingerprint(config).items()}


def check_encoder(folder: Path) -> Any:
    """The config of a model that transformers builds from these files alone. Raises SourceError for any other."""
    return check_saved(folder, "encoder", load_encoder, SAFE, unneeded=POOLER)
