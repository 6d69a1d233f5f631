"""Cuts documents into pieces that a classifier can read whole.

A piece is at most as long as the model reads, and ends at white space if its last quarter has any. The pieces of a text
follow one another, so nothing is left out or scored twice. A piece without a letter or a digit doesn't count.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Literal

BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
WORD = re.compile(r"[^\W_]")
SPACE = re.compile(r"\s\S*\Z")
CHARACTERS = 100_000  # tokenized at once, so that a word of megabytes doesn't cost more than other text


def pieces_of(tokenizer: Any, text: str, tokens: int, how: Literal["windows", "paragraphs", "beginning"]) -> list[str]:
    """The pieces of a text, of at most `tokens` tokens, without counting those that the tokenizer adds."""
    parts = _paragraphs(text) if how == "paragraphs" else [text]
    pieces = (piece for part in parts for piece in _windows(tokenizer, part, tokens) if WORD.search(piece))
    return [piece for _, piece in zip(range(1), pieces, strict=False)] if how == "beginning" else list(pieces)


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the text cut after blank lines."""
    begin = 0
    for blank in BLANK_LINES.finditer(text):
        yield text[begin : blank.end()]
        begin = blank.end()
    yield text[begin:]


def _windows(tokenizer: Any, text: str, tokens: int) -> Iterator[str]:
    for start in range(0, len(text), CHARACTERS):
        part = text[start : start + CHARACTERS]
        offsets = tokenizer(part, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        begins = [begin for begin, _ in offsets["offset_mapping"]]
        place = 0  # the first token of the next piece
        begin = 0
        while place + tokens < len(begins):
            end = max(begins[place + tokens], begin + 1)
            space = SPACE.search(part, begin + 3 * (end - begin) // 4, end)
            cut = space.start() + 1 if space else end
            yield part[begin:cut]
            begin, place = cut, max(bisect_left(begins, cut), place + 1)
        yield part[begin:]
