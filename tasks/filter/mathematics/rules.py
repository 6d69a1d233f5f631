"""The rules that don't apply to mathematics."""

from __future__ import annotations

from pydantic import Field

from tasks.filter.mathematics.config import MathematicsConfig
from tasks.filter.rules import Section


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
