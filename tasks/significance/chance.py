"""A score compared with chance, in words.

Guessing has its own error: a few answers that are all alike have none, yet may be luck. A score well below chance isn't
noise either: the answers were read wrongly, or the model prefers wrong answers.
"""

from __future__ import annotations

import math
from typing import Literal

Verdict = Literal["above chance", "no better than chance", "below chance"]
SURE = 2.0  # standard errors from chance from which a score is informative


def against_chance(value: float, chance: float, items: int, error: float | None) -> Verdict:
    """The verdict on a score between 0 and 1 of `items` questions that guessing answers with probability `chance`.

    `error` is the score's own standard error, or None. The error of guessing is its floor.
    """
    guessing = math.sqrt(max(0.0, chance * (1 - chance)) / items)
    limit = SURE * max(error or 0.0, guessing)
    away = value - chance
    if away == 0 or abs(away) < limit:
        return "no better than chance"
    return "above chance" if away > 0 else "below chance"
