"""The texts of pairs: the messages of a conversation, or of a prompt and its two answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from storage.errors import DamagedArtifact, make_again
from storage.shards.lines import read_json_lines

Pair = dict[str, Any]
TURNS = ("messages", "prompt", "chosen", "rejected", "completion")  # the lists of messages that a pair may have
GROUP = 1024  # pairs in memory at a time, and in a row group of their signals


def groups(path: Path) -> Iterator[list[Pair]]:
    """The pairs of a file, in order, `GROUP` at a time. Raises DamagedArtifact."""
    rows = read_json_lines(path)
    try:
        while group := list(islice(rows, GROUP)):
            yield group
    except ValueError as error:
        raise DamagedArtifact(f"{path} is not JSON: {error}.", make_again("download")) from error


def texts_of(pair: Pair) -> list[str]:
    """The contents of its messages, in order."""
    return [message["content"] for turn in TURNS for message in pair.get(turn, ())]


def with_texts(pair: Pair, texts: Sequence[str]) -> Pair:
    """The pair with its messages' contents replaced by `texts`, in the order of `texts_of`."""
    left = iter(texts)
    turns = {turn: [{**message, "content": next(left)} for message in pair[turn]] for turn in TURNS if turn in pair}
    return {**pair, **turns}
