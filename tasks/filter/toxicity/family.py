"""Toxicity as a filter family."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from tasks.filter.classifier.source import check_here
from tasks.filter.family import Family, measuring_half
from tasks.filter.rules import Rule, Section, bounds
from tasks.filter.toxicity.config import ToxicityConfig
from tasks.filter.toxicity.stage import toxicity_model, toxicity_signals


class ToxicityRules(Section):
    """Thresholds on a classifier's scores. A list of words by itself never removes a document."""

    measure: ToxicityConfig = Field(
        default_factory=ToxicityConfig, description="how toxicity is measured: by which classifier"
    )
    max_score: float | None = Field(
        0.15, ge=0, le=1, description="expected toxic share of the text: the mean score of its pieces"
    )
    max_piece: float | None = Field(None, ge=0, le=1, description="highest score of any piece")

    def named_sources(self) -> dict[str, list[str]]:
        """The sources of documents that count as clean."""
        model = self.measure.model
        return {"measure.model.clean_sources": model.clean_sources} if model.kind == "trained" else {}


def _rules(toxicity: ToxicityRules | None) -> Iterable[Rule]:
    return bounds("toxicity", toxicity, "toxicity_")


FAMILY = Family(("toxicity",), toxicity_signals, measuring_half, _rules, model=toxicity_model, check_here=check_here)
