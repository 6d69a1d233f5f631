"""Compares a format's settings with the checkpoint's: those that change logits, or what its user reads, must be equal.

A runtime computes what its config says, and tokenizer and template decide what comes of it. In a format with rounded
activations, answers hardly distinguish a wrong rope base from rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from storage.errors import ParityError
from tasks.export.formats.config import OF_LOADING
from tasks.export.formats.format import Format

# How weights are stored and where they came from. All other settings decide what is computed
CIRCUMSTANCES = (*OF_LOADING, "quantization_config", "dtype", "transformers_version", "_attn_implementation_internal")
LONGEST = 80  # characters of a setting in a message


def check_config(chosen: Format, model: Path, release: Path) -> None:
    """Raises ParityError, naming the setting, if a format's setting differs from the checkpoint's."""
    actual, expected = chosen.settings(model, release)
    for name in sorted((expected.keys() | actual.keys()) - set(CIRCUMSTANCES)):
        if expected.get(name) != actual.get(name):
            place, value, should = _difference(actual.get(name), expected.get(name))
            raise ParityError(
                f"In the release {name}{place} is {value}, for the checkpoint it should be {should}.",
                "This is a defect: report it.",
            )


def _difference(actual: Any, expected: Any) -> tuple[str, str, str]:
    """The place within a list, if any, and both values there."""
    if isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        place = next(place for place, (one, other) in enumerate(zip(actual, expected, strict=True)) if one != other)
        return f"[{place}]", _short(actual[place]), _short(expected[place])
    return "", _short(actual), _short(expected)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
