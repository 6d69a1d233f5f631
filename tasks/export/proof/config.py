"""A format's settings beside the checkpoint's: what changes logits, and what its user reads, must be the same.

A runtime computes what its config says, and tokenizer and template decide what is made of it. In a format whose
activations are rounded, a wrong rope base is hardly told from rounding by what it answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from storage.errors import ParityError
from tasks.export.formats.config import OF_LOADING
from tasks.export.formats.format import Format

# How weights are stored and where they came from; all else says what is computed
CIRCUMSTANCES = (*OF_LOADING, "quantization_config", "dtype", "transformers_version", "_attn_implementation_internal")
LONGEST = 80  # characters of a setting in a message


def check_config(chosen: Format, model: Path, release: Path) -> None:
    """Raises ParityError for a setting that a format has otherwise than the checkpoint, naming it."""
    found, expected = chosen.settings(model, release)
    for name in sorted((expected.keys() | found.keys()) - set(CIRCUMSTANCES)):
        if expected.get(name) != found.get(name):
            place, is_it, should = _difference(found.get(name), expected.get(name))
            raise ParityError(
                f"In the release {name}{place} is {is_it}, for the checkpoint it should be {should}.",
                "This is a defect; report it.",
            )


def _difference(found: Any, expected: Any) -> tuple[str, str, str]:
    """Where in a list, and both values there."""
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        place = next(place for place, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
        return f"[{place}]", _short(found[place]), _short(expected[place])
    return "", _short(found), _short(expected)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
