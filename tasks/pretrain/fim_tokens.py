"""The ids of the special tokens of fill-in-the-middle (FIM), read from the run's tokenizer: a third-party vocabulary
may have other ids for them, or none. The digest in the token shards ensures that they are those of this tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from models.tokenizer import FIM_TOKENS, SPECIAL_TOKENS
from storage.errors import ConfigError


class FimTokens(NamedTuple):
    """The ids of the special tokens that precede each part of a document."""

    prefix: int
    suffix: int
    middle: int


def default_fim_tokens() -> FimTokens:
    """The ids in a tokenizer trained by this pipeline, whose special tokens come first in the vocabulary."""
    return FimTokens(*map(SPECIAL_TOKENS.index, FIM_TOKENS))


def read_fim_tokens(tokenizer: Path, vocab_size: int) -> FimTokens:
    """The ids in the tokenizer of a folder. `vocab_size` is that of the token shards.

    Raises ConfigError if one is missing, is not a special token, or lies outside the shards' vocabulary.
    """
    settings = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["content"]: token["id"] for token in settings["added_tokens"] if token["special"]}
    missing = [token for token in FIM_TOKENS if special.get(token, vocab_size) >= vocab_size]
    if missing:
        raise ConfigError(
            f"pretrain.fim_rate needs special tokens that this tokenizer lacks: {', '.join(missing)}.",
            "Set pretrain.fim_rate to 0, or use a tokenizer that has them: a new one does.",
        )
    return FimTokens(*(special[token] for token in FIM_TOKENS))
