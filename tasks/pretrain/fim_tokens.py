"""The marks of fill-in-the-middle as ids: asked of the run's own tokenizer, since a vocabulary from elsewhere may have
them in other places or not at all. The digest that token shards carry tells that they are of this tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from models.tokenizer import FIM_TOKENS, SPECIAL_TOKENS
from storage.errors import ConfigError


class Marks(NamedTuple):
    """The ids of the special tokens in front of each piece of a document."""

    prefix: int
    suffix: int
    middle: int


def usual_marks() -> Marks:
    """The marks of a tokenizer that this pipeline trained: special tokens have the ids of their places."""
    return Marks(*map(SPECIAL_TOKENS.index, FIM_TOKENS))


def read_marks(tokenizer: Path, vocab_size: int) -> Marks:
    """The marks of the tokenizer in a folder; `vocab_size` is that of the token shards.

    Raises ConfigError where one is missing, is ordinary text that a document could spell, or lies outside the shards'
    vocabulary.
    """
    settings = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["content"]: token["id"] for token in settings["added_tokens"] if token["special"]}
    missing = [token for token in FIM_TOKENS if special.get(token, vocab_size) >= vocab_size]
    if missing:
        raise ConfigError(
            f"pretrain.fim_rate needs special tokens that this tokenizer does not have: {', '.join(missing)}.",
            "Train the tokenizer anew (--refresh tokenizer), or set pretrain.fim_rate to 0.",
        )
    return Marks(*(special[token] for token in FIM_TOKENS))
