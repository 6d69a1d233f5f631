"""Mathematics as a filter family. It only exempts documents with formulas from rules that count symbols."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from storage.shards.arrays import Bool
from tasks.filter.family import Family, Spared
from tasks.filter.form.config import FormConfig
from tasks.filter.form.latex import MathematicsConfig
from tasks.filter.mathematics.measure import mathematics_signals
from tasks.filter.rules import Rule, Section

WORDED = ("gopher_quality", "gopher_repetition")


class MathematicsRules(Section):
    """Exempts documents with LaTeX formulas from the rules that count their symbols."""

    measure: MathematicsConfig = Field(default_factory=MathematicsConfig, description="what counts as mathematics")
    min_share: float = Field(
        0.02, gt=0, le=1, description="minimum share of characters in formulas that makes a document mathematics"
    )
    spares: list[str] = Field(
        [
            "gopher_quality.min_mean_word_length",
            "gopher_quality.max_mean_word_length",
            "gopher_quality.min_alphabetic_words",
            "gopher_quality.max_hashes_per_word",
            "gopher_quality.max_ellipses_per_word",
            "c4.max_c4_curly_bracket_lines",
            "gopher_repetition.max_top_2gram_characters",
            "gopher_repetition.max_top_3gram_characters",
            "gopher_repetition.max_top_4gram_characters",
            "fineweb.max_short_lines",
            "fineweb.min_punctuated_lines",
        ],
        description="rules, or sections of rules, that don't apply to mathematics",
    )


def _is_mathematics(least: float, signals: pa.RecordBatch) -> Bool:
    mathematical: Bool = pc.greater_equal(signals["mathematics_share"], least).to_numpy(zero_copy_only=False)
    return mathematical


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
