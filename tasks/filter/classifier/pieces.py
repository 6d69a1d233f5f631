"""Documents cut into pieces that a classifier can read whole.

A piece is at most as long as the model reads, and ends at white space where there is some in its last quarter. The
pieces of a text follow one another, nothing is left out or scored twice; those without a letter or a digit are none.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Literal

BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
WORD = re.compile(r"[^\W_]")
SPACE = re.compile(r"\s\S*\Z")
CHARACTERS = 100_000  # given to the tokenizer at once, so that a word of megabytes costs no more than others


def pieces_of(tokenizer: Any, text: str, tokens: int, how: Literal["windows", "paragraphs", "beginning"]) -> list[str]:
    """The pieces of a text, of at most so many `tokens`, those that the tokenizer adds not counted."""
    parts = _paragraphs(text) if how == "paragraphs" else [text]
    found = (piece for part in parts for piece in _windows(tokenizer, part, tokens) if WORD.search(piece))
    return [piece for _, piece in zip(range(1), found, strict=False)] if how == "beginning" else list(found)


def _paragraphs(text: str) -> Iterator[str]:
    """The text cut after blank lines."""
    begin = 0
    for found in BLANK_LINES.finditer(text):
        yield text[begin : found.end()]
        begin = found.end()
    yield text[begin:]


def _windows(tokenizer: Any, text: str, tokens: int) -> Iterator[str]:
    for start in range(0, len(text), CHARACTERS):
        part = text[start : start + CHARACTERS]
        offsets = tokenizer(part, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        begins = [begin for begin, _ in offsets["offset_mapping"]]
        place = 0  # the token that the next piece begins with
        begin = 0
        while place + tokens < len(begins):
            end = max(begins[place + tokens], begin + 1)
            space = SPACE.search(part, begin + 3 * (end - begin) // 4, end)
            cut = space.start() + 1 if space else end
            yield part[begin:cut]
            begin, place = cut, max(bisect_left(begins, cut), place + 1)
        yield part[begin:]
