"""How the n-gram language model is trained."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class PerplexityModelConfig(StageConfig):
    """Training of the model, and the sample that gives the percentiles of perplexity in this corpus."""

    sources: list[str] = Field([], description="sources of trusted text to train on, or empty for all")
    sample_bytes: int = Field(
        50_000_000,
        ge=1,
        le=2_000_000_000,
        description="UTF-8 bytes to train on, with documents chosen by the hash of their ID. Training takes 12 times "
        "as much memory at order 3, 25 times at order 5",
    )
    order: int = Field(3, ge=2, le=5, description="length of the longest n-gram in words")
    min_count: int = Field(1, ge=1, description="minimum count of a word in the vocabulary. Rarer words are unknown")
    percentile_documents: int = Field(
        20_000,
        ge=1,
        description="documents of all sources for computing the percentiles, chosen by the hash of their ID",
    )


class PerplexityConfig(StageConfig):
    """Perplexity as a signal."""

    model: PerplexityModelConfig = Field(
        default_factory=PerplexityModelConfig, description="the language model, trained once"
    )
