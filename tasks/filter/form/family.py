"""Form as a filter family: four groups of thresholds over one set of signals, and C4's removal of lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage.shards.arrays import Bool
from tasks.filter.family import Change, Family
from tasks.filter.form.c4 import keep_c4_lines
from tasks.filter.form.config import C4LineRules, FormConfig
from tasks.filter.form.rules import C4Rules, FineWebRules, GopherQualityRules, GopherRepetitionRules
from tasks.filter.form.stage import form_signals
from tasks.filter.rules import Bound, Rule, Turn, bounds

LINES, CITATIONS = "c4_removed_lines", "c4_citations"  # signals


@dataclass(frozen=True)
class LineMender:
    """Removes the lines that C4 would not keep."""

    lines: C4LineRules
    turn: Turn = Turn.USUAL
    column: str = "text"

    def touches(self, signals: pa.RecordBatch) -> Bool:
        """See `Mender`."""
        found: Bool = pc.greater(pc.add(signals[LINES], signals[CITATIONS]), 0).to_numpy(zero_copy_only=False)
        return found

    def mend(self, text: str, signals: pa.RecordBatch, row: int) -> Change:
        """See `Mender`."""
        left = keep_c4_lines(text, self.lines)
        removed = text.count("\n") - left.count("\n")
        return Change(left, "c4.lines", removed, f"{len(text):,} → {len(left):,} characters")


def _rules(
    form: FormConfig,
    gopher_quality: GopherQualityRules | None,
    gopher_repetition: GopherRepetitionRules | None,
    c4: C4Rules | None,
    fineweb: FineWebRules | None,
) -> Iterator[Rule]:
    yield Bound("empty", "nonblank_lines", "min", 1, Turn.FIRST)  # of an empty text nothing else can be said
    yield from bounds("gopher_quality", gopher_quality, "")
    yield from bounds("gopher_repetition", gopher_repetition, "")
    yield from bounds("c4", c4, "")
    yield from bounds("fineweb", fineweb, "")


def _mender(form: FormConfig, _: Any, __: Any, c4: C4Rules | None, ___: Any) -> LineMender | None:
    return LineMender(form.c4) if c4 is not None and c4.remove_lines else None


def _measured_by(form: FormConfig, *_: Any) -> FormConfig:
    return form


FAMILY = Family(
    ("form", "gopher_quality", "gopher_repetition", "c4", "fineweb"), form_signals, _measured_by, _rules, mender=_mender
)
