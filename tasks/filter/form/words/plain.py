"""Words for `c4.py`, cut as `kernels.read_words` cuts them.

White space separates words. With `part_unspaced`, each letter of a script that is written without spaces begins a word
as well, and so does a letter or digit of another script after it. Marks and punctuation stay with the letter before
them. In UTF-8 such a letter takes three bytes or more, so a text of N bytes has at most N / 2 + 1 words.
"""

from __future__ import annotations

import functools
import itertools
import re

from tasks.filter.form.characters import CLOSERS, TERMINALS, WIDE_CLOSERS
from tasks.text.characters import unspaced_letters


def words_of(text: str, part_unspaced: bool) -> list[str]:
    """The words of a text."""
    return _pattern().findall(text) if part_unspaced and has_unspaced(text) else text.split()


def ends_sentence(word: str, part_unspaced: bool) -> bool:
    """Whether a word, or a line, ends in terminal punctuation, ignoring closing quotation marks and brackets."""
    wide = part_unspaced and has_unspaced(word)
    return word.rstrip(CLOSERS + WIDE_CLOSERS if wide else CLOSERS).endswith(tuple(TERMINALS))


def has_unspaced(text: str) -> bool:
    """Whether a text has a letter of a script without spaces."""
    return not text.isascii() and _unspaced().search(text) is not None


@functools.cache
def _pattern() -> re.Pattern[str]:
    letters, others = _unspaced().pattern, r"[^\s\w]|_"
    return re.compile(rf"(?:{others})*+{letters}(?:{others})*+|[^\s{letters[1:-1]}]+")


@functools.cache
def _unspaced() -> re.Pattern[str]:
    """A class of characters: the letters as ranges."""
    runs = itertools.groupby(enumerate(unspaced_letters()), lambda pair: pair[1] - pair[0])
    codes = [[code for _, code in run] for _, run in runs]
    return re.compile("[" + "".join(f"{chr(run[0])}-{chr(run[-1])}" for run in codes) + "]")
