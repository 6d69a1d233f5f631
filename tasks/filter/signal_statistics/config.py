"""The table of measures by language."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class MeasuresConfig(StageConfig):
    """How signals are spread in each language, and what thresholds that suggests (Penedo et al. 2025, FineWeb 2)."""

    reference: str = Field(
        "en", description="language that the profile's thresholds are for; others get those at the same quantiles"
    )
    tail: float = Field(
        0.1, gt=0, lt=0.5, description="share of a language's documents that a threshold of the other kind would remove"
    )
    min_documents: int = Field(100, ge=2, description="languages with fewer documents are counted and not measured")
    sample: int = Field(
        10_000, ge=100, description="documents of each language that are measured, those with the smallest IDs"
    )
