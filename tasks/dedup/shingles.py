"""From a text to what is compared: a hash of the normalised text, and a set of word n-grams.

Two texts are exact duplicates when they agree after NFC, case folding and collapsing of white space. For
near-duplicates punctuation is dropped too, and a text is the set of its word n-grams ("shingles"), each a 64-bit hash.
Sets of n hashes are compared instead of n-grams: for two sets of a million shingles, the chance that a single
collision touches the Jaccard is below 1e-6.
"""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import numpy.typing as npt
import xxhash

Shingles = npt.NDArray[np.uint64]

# Scripts that put no spaces between words give one word a character; else a page of them would be one shingle.
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD_ASCII = re.compile(rb"\w+")
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+")

_MIX = tuple(np.uint64(constant) for constant in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53))
_SHIFT = np.uint64(33)


def normalise(text: str) -> str:
    """NFC, case folded, every run of white space one space."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def exact_hash(normalised: str) -> tuple[int, int]:
    """xxh3_128 of a normalised text as (high, low) 64-bit halves."""
    digest = xxhash.xxh3_128_intdigest(normalised.encode())
    return digest >> 64, digest & 0xFFFFFFFFFFFFFFFF


def shingles(normalised: str, ngram: int) -> Shingles:
    """The sorted set of hashed word n-grams of a normalised text; empty for a text without words."""
    if normalised.isascii():
        found = _WORD_ASCII.findall(normalised.encode())
    else:
        found = [word.encode() for word in _WORD.findall(normalised)]
    words = np.array([xxhash.xxh3_64_intdigest(word) for word in found], dtype=np.uint64)
    return np.unique(_rolling(words, min(ngram, len(words)))) if len(words) else words


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """MurmurHash3's 64-bit finaliser: a bijection after which every bit depends on every bit."""
    for constant in _MIX:
        values = (values ^ (values >> _SHIFT)) * constant
    return values ^ (values >> _SHIFT)


def _rolling(words: npt.NDArray[np.uint64], length: int) -> Shingles:
    count = len(words) - length + 1
    hashed = np.full(count, length, dtype=np.uint64)
    for offset in range(length):
        hashed = mix(hashed ^ words[offset : offset + count])
    return hashed
