"""How the CPU time of a data stage grows with the text of its corpus, fitted to measurements of earlier runs.

Each stage has a law that follows from its algorithm. All but two read every document once. Dedup sorts the keys of all
documents band by band. The tokenizer learns from a sample of limited size. Constant time, such as imports and
compiling, is fitted too if runs of two sizes are known. With runs of one size it can't be separated from growth.

A vocabulary grows until it is full, so what its tokens cost is growth between two small corpora and constant beyond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

LAWS = {"download": "n", "dedup": "n log n", "filter": "n", "tokenizer": "n, up to its sample", "tokenize": "n"}

# Bytes of text, of those that a stage reads, that take it as long as a token of the vocabulary: the token is learned,
# tried, loaded several times, and spelled for the first time
TOKEN = {"tokenizer": 400, "tokenize": 250}


class Measured(NamedTuple):
    """A measured run: bytes of text in its whole corpus, CPU seconds, and the bytes of the corpus that take as long as
    its vocabulary."""

    text: int
    seconds: float
    vocabulary: float = 0.0


@dataclass(frozen=True)
class Growth:
    """CPU seconds of a stage: `fixed`, and `each` for every unit of the law."""

    law: str
    fixed: float
    each: float
    sample: float  # most bytes from which the tokenizer learns
    measured: int  # different sizes of corpora that it was fitted to
    largest: int  # bytes of the largest
    vocabulary: float = 0.0  # bytes of text that take as long as the largest vocabulary

    def seconds(self, text: float) -> float:
        """CPU seconds for `text` bytes of text."""
        return self.fixed + self.each * (units(self.law, text, self.sample) + self.vocabulary)


def units(law: str, text: float, sample: float = math.inf) -> float:
    """The quantity that the time is proportional to."""
    if law == "n log n":
        return text * math.log2(max(2.0, text))
    return min(text, sample) if law != "n" else text


def fit(law: str, runs: Sequence[Measured], sample: float = math.inf) -> Growth:
    """Fit a law by least squares over one or more measurements, with neither a negative start nor a negative growth.
    Each measurement weighs as much as it has text: the time of a small corpus is mostly start-up, which differs from
    run to run, and with limits not yet reached, such as the size of a vocabulary."""
    x = [units(law, each.text, sample) + each.vocabulary for each in runs]
    y = [each.seconds for each in runs]
    total = sum(x)
    mean_x, mean_y = (sum(a * b for a, b in zip(x, values, strict=True)) / total for values in (x, y))
    spread = sum(one * (one - mean_x) ** 2 for one in x)
    each = sum(a * (a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread if spread else 0.0
    fixed = mean_y - each * mean_x
    if each <= 0 or fixed < 0:
        fixed, each = 0.0, sum(y) / max(1.0, sum(x))
    sizes = {one.text for one in runs}
    return Growth(law, fixed, each, sample, len(sizes), max(sizes), max(one.vocabulary for one in runs))
