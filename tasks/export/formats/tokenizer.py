"""The tokenizer of a release: the model's own, with the model's context in its config.

Ids and prompts don't change: the digest of a tokenizer covers tokenizer.json and the chat template, which are copied
byte for byte.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from models.pretrained import context_of, load_config
from models.tokenizer import copy_tokenizer, portable_settings

NAME = "tokenizer_config.json"
_OF_LOADING = ("is_local", "local_files_only", "name_or_path")  # transformers saves how it loaded the tokenizer


def write_tokenizer(model: Path, target: Path) -> None:
    """Copy a model folder's tokenizer to a format of a release."""
    copy_tokenizer(model, target)
    text = json.dumps(tokenizer_settings(model), indent=2, ensure_ascii=False)
    (target / NAME).write_text(text + "\n", encoding="utf-8")


def tokenizer_settings(model: Path) -> dict[str, Any]:
    """The content of a release's tokenizer_config.json. `model_max_length` is the model's context, since programs cut
    texts to it and the pipeline's tokenizer has no limit."""
    settings = json.loads((model / NAME).read_text(encoding="utf-8"))
    settings = {name: value for name, value in settings.items() if name not in _OF_LOADING}
    return {**portable_settings(settings), "model_max_length": context_of(load_config(model))}
