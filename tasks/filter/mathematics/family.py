"""Mathematics as a filter family: it has no rule of its own, and spares documents those that count symbols."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from storage.shards.arrays import Bool
from tasks.filter.family import Family, Spared, measuring_half
from tasks.filter.mathematics.rules import MathematicsRules
from tasks.filter.mathematics.stage import mathematics_signals
from tasks.filter.rules import Rule


def _is_mathematics(least: float, signals: pa.RecordBatch) -> Bool:
    found: Bool = pc.greater_equal(signals["mathematics_share"], least).to_numpy(zero_copy_only=False)
    return found


def _rules(mathematics: MathematicsRules | None) -> Iterable[Rule]:
    return ()


def _spares(mathematics: MathematicsRules | None) -> Spared | None:
    if mathematics is None:
        return None
    return Spared(tuple(mathematics.spares), functools.partial(_is_mathematics, mathematics.min_share))


FAMILY = Family(("mathematics",), mathematics_signals, measuring_half, _rules, spares=_spares)
