"""Measures of form, one pass a document; the rules over them stand in `decide.py`.

Words are what white space separates. Sources: Gopher (Rae et al. 2021, appendix A.1.1), C4 (Raffel et al. 2020, 2.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
BULLETS = ("•", "-", "*", "‣", "·")
ELLIPSES = ("...", "…")


class Form(NamedTuple):
    """The measures, in the order of their columns. Shares are between 0 and 1."""

    words: int
    mean_word_length: float
    symbol_ratio: float
    bullet_lines: float
    ellipsis_lines: float
    alphabetic_words: float
    stop_words: int
    curly_brackets: float
    lorem_ipsum: bool
    duplicate_lines: float
    duplicate_paragraphs: float
    top_2gram: float
    top_3gram: float
    top_4gram: float


def measure_form(text: str) -> Form:
    """Every measure of a text."""
    words = text.split()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    lowered = [word.lower().strip(".,;:!?\"'()") for word in words]
    symbols = text.count("#") + text.count("...") + text.count("…")
    return Form(
        words=len(words),
        mean_word_length=sum(map(len, words)) / max(1, len(words)),
        symbol_ratio=symbols / max(1, len(words)),
        bullet_lines=_share(line.startswith(BULLETS) for line in lines),
        ellipsis_lines=_share(line.endswith(ELLIPSES) for line in lines),
        alphabetic_words=_share(any(map(str.isalpha, word)) for word in words),
        stop_words=len(STOP_WORDS.intersection(lowered)),
        curly_brackets=(text.count("{") + text.count("}")) / max(1, len(text)),
        lorem_ipsum="lorem ipsum" in text.lower(),
        duplicate_lines=_repeated(lines),
        duplicate_paragraphs=_repeated(paragraphs),
        top_2gram=_top_ngram(words, 2, len(text)),
        top_3gram=_top_ngram(words, 3, len(text)),
        top_4gram=_top_ngram(words, 4, len(text)),
    )


def _share(flags: object) -> float:
    values = list(flags)  # type: ignore[call-overload]
    return sum(values) / max(1, len(values))


def _repeated(parts: Sequence[str]) -> float:
    return 1 - len(set(parts)) / len(parts) if parts else 0.0


def _top_ngram(words: Sequence[str], n: int, characters: int) -> float:
    """Characters in all occurrences of the commonest n-gram, as a share; 0 when nothing repeats."""
    if len(words) < n:
        return 0.0
    gram, count = Counter(zip(*(words[i:] for i in range(n)), strict=False)).most_common(1)[0]
    return min(1.0, count * sum(map(len, gram)) / max(1, characters)) if count > 1 else 0.0
