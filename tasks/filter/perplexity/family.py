"""Perplexity as a filter family."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from tasks.filter.family import Family, measuring_half
from tasks.filter.perplexity.config import PerplexityConfig
from tasks.filter.perplexity.measure import perplexity_model, perplexity_signals
from tasks.filter.rules import Member, Rule, Section, Turn, bounds


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


def _rules(perplexity: PerplexityRules | None) -> Iterator[Rule]:
    yield from bounds("perplexity", perplexity, "perplexity_")
    if perplexity is not None:
        buckets = tuple(perplexity.buckets)
        yield Member("perplexity.buckets", "perplexity_bucket", buckets, "perplexity", turn=Turn.LAST)


FAMILY = Family(("perplexity",), perplexity_signals, measuring_half, _rules, model=perplexity_model)
