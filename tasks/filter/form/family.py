"""Form as a filter family: four groups of thresholds over one set of signals, and C4's removal of lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.shards.arrays import Bool
from tasks.filter.family import Change, Family
from tasks.filter.form.c4 import keep_c4_lines
from tasks.filter.form.config import FormConfig, stop_words_in
from tasks.filter.form.languages.thresholds import Languages, of_group
from tasks.filter.form.rules import C4Rules, FineWebRules, GopherQualityRules, GopherRepetitionRules
from tasks.filter.form.stage import form_signals
from tasks.filter.rules import Bound, Rule, Turn, bounds

STOP_WORDS = "min_stop_words"
LINES, CITATIONS = "c4_removed_lines", "c4_citations"  # signals


@dataclass(frozen=True)
class LineMender:
    """Removes the lines that C4 would not keep. With `as_datatrove`, texts that lose none also lose their blank lines
    and the white space around lines."""

    form: FormConfig
    turn: Turn = Turn.USUAL
    column: str = "text"

    def touches(self, signals: pa.RecordBatch) -> Bool:
        """See `Mender`."""
        if self.form.as_datatrove:
            return np.ones(signals.num_rows, np.bool_)
        touched: Bool = pc.greater(pc.add(signals[LINES], signals[CITATIONS]), 0).to_numpy(zero_copy_only=False)
        return touched

    def mend(self, text: str, signals: pa.RecordBatch, row: int) -> Change:
        """See `Mender`."""
        left = keep_c4_lines(text, self.form.c4, self.form.part_unspaced)
        removed = text.count("\n") - left.count("\n")
        return Change(left, "c4.lines", removed, f"{len(text):,} → {len(left):,} characters")


def _rules(
    form: FormConfig,
    gopher_quality: GopherQualityRules | None,
    gopher_repetition: GopherRepetitionRules | None,
    c4: C4Rules | None,
    fineweb: FineWebRules | None,
    languages: Languages,
) -> Iterator[Rule]:
    yield Bound("empty", "text_lines", "min", 1, Turn.FIRST)  # other rules are meaningless for an empty text
    groups = {"gopher_quality": gopher_quality, "gopher_repetition": gopher_repetition, "c4": c4, "fineweb": fineweb}
    counted = {(STOP_WORDS, language): stop_words_in(language) for language in form.stop_words_of}
    for group, thresholds in groups.items():
        own = of_group(languages, group)
        if gopher_quality is not None and thresholds is gopher_quality:
            usual = {STOP_WORDS: gopher_quality.min_stop_words}
            own |= {language: {**usual, **own.get(language, {})} for language in form.stop_words_of}
        yield from bounds(group, thresholds, "", own, counted)


def _mender(form: FormConfig, _: Any, __: Any, c4: C4Rules | None, *___: Any) -> LineMender | None:
    return LineMender(form) if c4 is not None and c4.remove_lines else None


def _measured_by(form: FormConfig, *_: Any) -> FormConfig:
    return form


FAMILY = Family(
    ("form", "gopher_quality", "gopher_repetition", "c4", "fineweb", "languages"),
    form_signals,
    _measured_by,
    _rules,
    mender=_mender,
)
