"""Tokenization for the classifiers that the pipeline trains, the same in training and scoring.

Texts are NFC and case-folded, and a word is a run of letters and digits. An underscore ends it, so that no text can
contain a fastText label (`__label__…`, which occurs in the wild and would teach it a third class). Every ideograph and
kana is a separate word: their scripts don't use spaces, and a whole sentence as one word would be unknown to any model.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64, UInt8
from tasks.filter.fasttext_model.word_kernels import ALONE, BREAK, LETTER
from tasks.text.characters import SIZE, WORD, characters
from tasks.text.scan import Scanner

# Radicals, kana and bopomofo, then ideographs, Yi, compatibility ideographs, and the planes of rare ideographs
_UNSPACED = (
    range(0x2E80, 0x3130),
    range(0x3190, 0x4DC0),
    range(0x4E00, 0xA4D0),
    range(0xF900, 0xFB00),
    range(0x20000, SIZE),
)
_CLASS = "".join(f"{chr(block[0])}-{chr(block[-1])}" for block in _UNSPACED)
_TOKEN = re.compile(rf"(?=[^\W_])[{_CLASS}]|[^\W_{_CLASS}]+")


class Folded(NamedTuple):
    """The normalised texts at `rows` of the batch, each `data[begins[i]:ends[i]]`. Valid until the next part."""

    rows: Int64
    data: UInt8
    begins: Int64
    ends: Int64


def fold(texts: pa.Array) -> Iterator[Folded]:
    """Yield texts normalised for a `Classifier`, in parts. If a row comes twice, the later one is valid."""
    for part in Scanner(words=False).scan(texts):
        yield Folded(part.rows, part.text, np.concatenate([[0], part.text_ends[:-1]]), part.text_ends)


def tokens(text: str) -> str:
    """A text as a line for fastText's trainer: its words, separated by single spaces."""
    return " ".join(_TOKEN.findall(_scanner().normalise(text)))


@functools.cache
def word_kinds() -> UInt8:
    """BREAK, LETTER or ALONE for each code point, for `kernels.Tables`."""
    kinds = term_kinds().copy()
    kinds[ord("_")] = BREAK
    for block in _UNSPACED:
        part = kinds[block.start : block.stop]
        part[part == LETTER] = ALONE
    return kinds


@functools.cache
def term_kinds() -> UInt8:
    """BREAK or LETTER for each code point, for words as `\\w+` finds them."""
    return np.where(characters(True, True).kinds & WORD, LETTER, BREAK).astype(np.uint8)


@functools.cache
def _scanner() -> Scanner:
    return Scanner(words=False)
