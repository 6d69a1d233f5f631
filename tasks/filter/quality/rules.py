"""The threshold on quality."""

from __future__ import annotations

from pydantic import Field

from tasks.filter.quality.config import QualityConfig
from tasks.filter.rules import Section


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
