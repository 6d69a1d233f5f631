"""Language as a filter family: the languages to keep, and the thresholds on their identification."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from tasks.filter.family import Family, measuring_half
from tasks.filter.language.config import LanguageConfig
from tasks.filter.language.measure import language_signals
from tasks.filter.rules import Member, Rule, Section, Tested, Turn, bounds


class LanguageRules(Section):
    """Language identification by fastText's lid.176 (Joulin et al. 2016)."""

    measure: LanguageConfig = Field(default_factory=LanguageConfig, description="how languages are measured")
    allowed: list[str] = Field(["en"], min_length=1, description="languages to keep, ISO 639-1 codes where they exist")
    min_score: float | None = Field(
        0.65, ge=0, le=1, description="probability of the most likely language (FineWeb: 0.65)"
    )
    scores: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        {}, description="minimum probability by language, such as {de: 0.82, zh: 0.69}, in place of `min_score`"
    )
    min_margin: float | None = Field(
        None, ge=0, le=1, description="probability of the most likely language minus that of the second"
    )
    min_share: float | None = Field(
        None, ge=0, le=1, description="share of the letters that are in pieces of the most likely language"
    )
    agreement: bool = Field(
        True, description="remove documents whose second opinion differs, if `measure.second` is set"
    )

    @model_validator(mode="after")
    def _codes(self) -> Self:
        if wrong := [name for name in (*self.allowed, *self.scores) if not re.fullmatch("[a-z]{2,3}", name)]:
            raise ValueError(f"{wrong[0]!r} is not a language code of two or three letters, such as en for English")
        return self


@dataclass(frozen=True)
class Agreement:
    """A document passes if the second opinion equals the first, or is missing. The ledger's value is the second's
    probability."""

    name: str
    threshold: float | None = None
    turn: Turn = Turn.USUAL

    def test(self, signals: pa.RecordBatch) -> Tested:
        """See `Rule`."""
        differs = pc.not_equal(signals["language"], signals["language_second"]).fill_null(False)
        values = pc.fill_null(signals["language_second_score"], 0.0).to_numpy(zero_copy_only=False)
        unknown = signals["language"].is_null().to_numpy(zero_copy_only=False)
        return Tested(differs.to_numpy(zero_copy_only=False), unknown, values)

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """The second opinion."""
        return signals["language_second"]


def _rules(language: LanguageRules | None) -> Iterator[Rule]:
    if language is None:
        return
    yield Member("language", "language", tuple(language.allowed), "language_score")
    if language.measure.second and language.agreement:
        yield Agreement("language.agreement")
    own = {name: {"min_score": score} for name, score in language.scores.items()}
    yield from bounds("language", language, "language_", own)


FAMILY = Family(("language",), language_signals, measuring_half, _rules)
