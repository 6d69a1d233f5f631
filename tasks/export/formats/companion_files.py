"""What lies beside the weights of a folder and decides what its user reads: tokenizer, template, where an answer ends.

None of it changes a logit, so that it is compared for what it says.
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


def beside(folder: Path, model: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a folder of a release says, and what it should say for the checkpoint in `model`; by name."""
    found, expected = ({name: _digest(one / name) for name in _COPIED} for one in (folder, model))
    settings = folder / "tokenizer_config.json"
    says = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    found |= _named("tokenizer_config", says)
    expected |= _named("tokenizer_config", tokenizer_settings(model))
    if (folder / "config.json").is_file():
        found |= _named("generation_config", _generation(folder))
        expected |= _named("generation_config", _generation(model))
    return found, expected


def _named(file: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {f"{file}.{name}": value for name, value in settings.items()}


def _digest(path: Path) -> str:
    return f"sha256:{file_digest(path)[:12]}" if path.is_file() else "missing"


def _generation(folder: Path) -> dict[str, Any]:
    """As transformers takes it: made from the config where there is no file."""
    from transformers import GenerationConfig

    from models.pretrained import load_config

    if (folder / "generation_config.json").is_file():
        config = GenerationConfig.from_pretrained(str(folder), local_files_only=True)
    else:
        config = GenerationConfig.from_model_config(load_config(folder))
    return {name: value for name, value in config.to_dict().items() if name not in _CIRCUMSTANCES}
