"""The languages to keep, and the thresholds on their identification."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.filter.language.config import LanguageConfig
from tasks.filter.rules import Section


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
