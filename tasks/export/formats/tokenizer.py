"""The tokenizer as a release has it: the model's own, whose config says how much the model sees at a time.

Its ids and prompts are as they were: the digest of a tokenizer covers tokenizer.json and the chat template, which are
copied byte for byte.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from models.pretrained import context_of, load_config
from models.tokenizer import copy_tokenizer, portable_settings

NAME = "tokenizer_config.json"
_OF_LOADING = ("is_local", "local_files_only", "name_or_path")  # transformers saves how it once loaded them


def write_tokenizer(model: Path, target: Path) -> None:
    """Copy the tokenizer of a model folder to a format of a release."""
    copy_tokenizer(model, target)
    text = json.dumps(tokenizer_settings(model), indent=2, ensure_ascii=False)
    (target / NAME).write_text(text + "\n", encoding="utf-8")


def tokenizer_settings(model: Path) -> dict[str, Any]:
    """What tokenizer_config.json says in a release, with `model_max_length` as the model's context: programs cut texts
    to it, and a pipeline's own tokenizer has no limit."""
    settings = json.loads((model / NAME).read_text(encoding="utf-8"))
    settings = {name: value for name, value in settings.items() if name not in _OF_LOADING}
    return {**portable_settings(settings), "model_max_length": context_of(load_config(model))}
