"""Quality as a filter family."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from tasks.filter.classifier.source import check_here
from tasks.filter.family import Family, measuring_half
from tasks.filter.quality.measure import QualityConfig, quality_model, quality_signals
from tasks.filter.rules import Rule, Section, bounds


class QualityRules(Section):
    """A fastText classifier that separates good from ordinary text, trained by the pipeline, or a sequence classifier
    in transformers."""

    measure: QualityConfig = Field(description="how quality is measured: the classifier and its training texts")
    min_score: float | None = Field(0.1, ge=0, le=1, description="probability of being good text")

    def named_sources(self) -> dict[str, list[str]]:
        """The sources of both classes."""
        model = self.measure.model
        if model.kind != "trained":
            return {}
        return {"measure.model.positive": model.positive, "measure.model.negative": model.negative}


def _rules(quality: QualityRules | None) -> Iterable[Rule]:
    return bounds("quality", quality, "quality_")


FAMILY = Family(("quality",), quality_signals, measuring_half, _rules, model=quality_model, check_here=check_here)
