"""The agreement of two labellers beyond chance: Cohen's kappa (Cohen 1960)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Agreement(NamedTuple):
    """The number of texts that both labelled yes or no, the share of equal labels, and Cohen's kappa. Share and kappa
    are None without texts. Kappa is also None if both labellers gave every text the same label."""

    texts: int
    equal: float | None
    kappa: float | None


def agreement(first: Iterable[Mapping[str, Any]], second: Iterable[Mapping[str, Any]]) -> Agreement:
    """The agreement between the rows of two files of labels."""
    sides = [{row["id"]: row["label"] == "yes" for row in rows if row["label"] != "skip"} for rows in (first, second)]
    shared = [(sides[0][name], sides[1][name]) for name in sides[0] if name in sides[1]]
    if not shared:
        return Agreement(0, None, None)
    size = len(shared)
    equal = sum(one == other for one, other in shared) / size
    yes = [sum(side) / size for side in zip(*shared, strict=True)]
    chance = yes[0] * yes[1] + (1 - yes[0]) * (1 - yes[1])
    return Agreement(size, equal, (equal - chance) / (1 - chance) if chance < 1 else None)
