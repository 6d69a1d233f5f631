"""A format's settings beside the checkpoint's: what changes logits, and what its user reads, must be the same.

A runtime computes what its config says, and tokenizer and template decide what is made of it. In a format whose
activations are rounded, a wrong rope base is hardly told from rounding by what it answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from storage.errors import ParityError
from tasks.export.formats.format import Format
from tasks.export.formats.safetensors import OF_LOADING

# How weights are stored and where they came from; all else says what is computed
CIRCUMSTANCES = (
    *OF_LOADING, "quantization_config", "dtype", "transformers_version", "_attn_implementation_internal",
)  # fmt: skip
LONGEST = 80  # characters of a setting in a message


def check_config(chosen: Format, model: Path, release: Path) -> None:
    """Raises ParityError for a setting that a format has otherwise than the checkpoint, naming it."""
    found, expected = chosen.settings(model, release)
    for name in sorted((expected.keys() | found.keys()) - set(CIRCUMSTANCES)):
        if expected.get(name) != found.get(name):
            is_it, should = (_short(one.get(name)) for one in (found, expected))
            raise ParityError(
                f"In the release {name} is {is_it}, for the checkpoint it should be {should}.",
                "This is a defect; report it.",
            )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
