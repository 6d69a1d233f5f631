"""Mathematics as a filter family. It only exempts documents with formulas from rules that count symbols."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from storage.shards.arrays import Bool
from tasks.filter.family import Family, Spared
from tasks.filter.form.config import FormConfig
from tasks.filter.mathematics.config import MathematicsConfig
from tasks.filter.mathematics.rules import MathematicsRules
from tasks.filter.mathematics.stage import mathematics_signals
from tasks.filter.rules import Rule

WORDED = ("gopher_quality", "gopher_repetition")


def _is_mathematics(least: float, signals: pa.RecordBatch) -> Bool:
    found: Bool = pc.greater_equal(signals["mathematics_share"], least).to_numpy(zero_copy_only=False)
    return found


def _measured_by(mathematics: MathematicsRules | None, form: FormConfig) -> MathematicsConfig | None:
    return mathematics.measure if mathematics is not None else None


def _rules(mathematics: MathematicsRules | None, form: FormConfig) -> Iterable[Rule]:
    return ()


def _spares(mathematics: MathematicsRules | None, form: FormConfig) -> Spared | None:
    if mathematics is None:
        return None
    # If form leaves formulas out, rules over words judge the prose around them
    spared = [name for name in mathematics.spares if not form.formulas or name.partition(".")[0] not in WORDED]
    return Spared(tuple(spared), functools.partial(_is_mathematics, mathematics.min_share))


FAMILY = Family(("mathematics", "form"), mathematics_signals, _measured_by, _rules, spares=_spares)
