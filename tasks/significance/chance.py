"""A score beside what guessing gives, in words.

Guessing has an error of its own: a few answers that are all alike have none, and yet may be luck. A score well below
chance is no noise either: the answers were read wrongly, or the model prefers what is wrong.
"""

from __future__ import annotations

import math
from typing import Literal

Verdict = Literal["above chance", "no better than chance", "below chance"]
SURE = 2.0  # standard errors from chance from which a score is informative


def against_chance(value: float, chance: float, items: int, error: float | None) -> Verdict:
    """Where a score between 0 and 1 stands, of `items` questions that guessing answers with probability `chance`.

    `error` is the score's own standard error, None where it has none; that of guessing is its floor.
    """
    guessing = math.sqrt(max(0.0, chance * (1 - chance)) / items)
    limit = SURE * max(error or 0.0, guessing)
    away = value - chance
    if away == 0 or abs(away) < limit:
        return "no better than chance"
    return "above chance" if away > 0 else "below chance"
