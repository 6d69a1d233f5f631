"""The thresholds on toxicity."""

from __future__ import annotations

from pydantic import Field

from tasks.filter.rules import Section
from tasks.filter.toxicity.config import ToxicityConfig


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
