"""What the language model is trained on, and how."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class PerplexityModelConfig(StageConfig):
    """Training of the model, and the sample that tells what is low and what is high perplexity here."""

    sources: list[str] = Field([], description="sources whose documents are trained on: trusted text; all when empty")
    sample_bytes: int = Field(
        50_000_000,
        ge=1,
        le=2_000_000_000,
        description="UTF-8 bytes of those sources, chosen by the hash of the id; training takes 12 times as much memory"
        " at order 3, 25 times at order 5",
    )
    order: int = Field(3, ge=2, le=5, description="words in the longest n-gram")
    min_count: int = Field(1, ge=1, description="a word that occurs less often in the training text is unknown")
    percentile_documents: int = Field(
        20_000, ge=1, description="documents of all sources, chosen by the hash of the id, that make the percentiles"
    )


class PerplexityConfig(StageConfig):
    """Perplexity as a signal."""

    model: PerplexityModelConfig = Field(
        default_factory=PerplexityModelConfig, description="the language model, trained once"
    )
