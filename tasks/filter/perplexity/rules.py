"""The thresholds on perplexity."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.filter.perplexity.config import PerplexityConfig
from tasks.filter.rules import Section


class PerplexityRules(Section):
    """Perplexity under an n-gram model of trusted text (CCNet: Wenzek et al. 2020)."""

    measure: PerplexityConfig = Field(default_factory=PerplexityConfig, description="how perplexity is measured")
    buckets: list[Literal["head", "middle", "tail"]] = Field(
        ["head", "middle", "tail"], min_length=1, description="terciles of perplexity to keep, of which head is lowest"
    )
    max_percentile: float | None = Field(
        None, ge=0, le=100, description="highest percentile of perplexity in this corpus to keep"
    )

    def named_sources(self) -> dict[str, list[str]]:
        """The sources that the model is trained on."""
        return {"measure.model.sources": self.measure.model.sources}
