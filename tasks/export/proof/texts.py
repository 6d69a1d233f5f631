"""Strings and conversations that every format must turn into the ids of the checkpoint's tokenizer."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from models.runtimes.protocol import Message
from tasks.tokenizer.proof import HARD_TEXTS

# Several turns, a system's words, code, other scripts, white space at both ends. A template may refuse some
CONVERSATIONS: tuple[Sequence[Message], ...] = (
    ({"role": "user", "content": "What is a river?"},),
    ({"role": "system", "content": "Answer in one sentence."}, {"role": "user", "content": "Who wrote the Odyssey?"}),
    (
        {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": "Blue."},
        {"role": "user", "content": "And another?"},
    ),
    ({"role": "user", "content": "def f(x):\n    return {'a': x}  # <|user|> & \"quotes\"\n"},),
    ({"role": "user", "content": "  Où est la gare ? 駅はどこですか 👩‍👩‍👧 \u200d\n"},),
)


def hostile_texts(model: Path) -> list[str]:
    """Texts full of what tokenizers differ on. Where a tokenizer composes characters first (NFC), they are composed:
    llama.cpp leaves that to whoever calls it."""
    settings = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    composed = "NFC" in json.dumps(settings.get("normalizer"))
    return [unicodedata.normalize("NFC", text) if composed else text for text in HARD_TEXTS]
