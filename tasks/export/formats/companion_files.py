"""The files next to a folder's weights that decide what its user reads: tokenizer, template, where an answer ends.

None of them changes a logit, so their contents are compared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from storage.digests import file_digest
from tasks.export.formats.tokenizer import tokenizer_settings

TEMPLATE = "chat_template.jinja"
_COPIED = ("tokenizer.json", TEMPLATE)
_CIRCUMSTANCES = ("transformers_version", "_from_model_config")  # of a generation config


def companion_settings(folder: Path, model: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The actual contents of a release's folder, and those expected for the checkpoint in `model`, by name."""
    actual, expected = ({name: _digest(one / name) for name in _COPIED} for one in (folder, model))
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    actual |= _prefixed("tokenizer_config", settings)
    expected |= _prefixed("tokenizer_config", tokenizer_settings(model))
    if (folder / "config.json").is_file():
        actual |= _prefixed("generation_config", _generation(folder))
        expected |= _prefixed("generation_config", _generation(model))
    return actual, expected


def _prefixed(file: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {f"{file}.{name}": value for name, value in settings.items()}


def _digest(path: Path) -> str:
    return f"sha256:{file_digest(path)[:12]}" if path.is_file() else "missing"


def _generation(folder: Path) -> dict[str, Any]:
    """The generation config as transformers reads it: from its file, or else from the model's config."""
    from transformers import GenerationConfig

    from models.pretrained import load_config

    if (folder / "generation_config.json").is_file():
        config = GenerationConfig.from_pretrained(str(folder), local_files_only=True)
    else:
        config = GenerationConfig.from_model_config(load_config(folder))
    return {name: value for name, value in config.to_dict().items() if name not in _CIRCUMSTANCES}
