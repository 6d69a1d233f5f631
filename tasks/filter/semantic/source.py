"""The files of an embedding model: identified by their digests, and refused if they are code, pickles or half a
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
POOLER = "pooler."  # weights of BERT and similar models that a mean over the tokens doesn't need


def fingerprints(config: BaseConfig) -> dict[str, str]:
    """Digests of the model's files, or its revision. Raises SourceError."""
    if config.folder is not None and not (folder := Path(config.folder).expanduser()).is_dir():
        raise SourceError(f"The model's folder {folder} does not exist.", "Check the path under `filter.semantic`.")
    return {name.replace("base/", "encoder/", 1): digest for name, digest in fingerprint(config).items()}


def check_encoder(folder: Path) -> Any:
    """The config of a model that transformers can build from only these files. Raises SourceError for any other."""
    return check_saved(folder, "encoder", load_encoder, SAFE, unneeded=POOLER)
