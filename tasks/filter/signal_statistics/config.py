"""The settings of the table of signals by language."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class MeasuresConfig(StageConfig):
    """The spread of signals in each language, and the thresholds it suggests (Penedo et al. 2025, FineWeb 2)."""

    reference: str = Field(
        "en", description="language of the profile's thresholds. Other languages get those at the same quantiles"
    )
    tail: float = Field(
        0.1, gt=0, lt=0.5, description="share of a language's documents to remove by the second kind of threshold"
    )
    min_documents: int = Field(100, ge=2, description="minimum documents of a language. With fewer it is only counted")
    sample: int = Field(
        10_000, ge=100, description="documents of each language to measure, those with the smallest IDs"
    )
