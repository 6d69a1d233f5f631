"""What counts as a duplicate."""

from __future__ import annotations

from pydantic import Field

from tasks.config import StageConfig


class DedupConfig(StageConfig):
    """Exact and near-duplicate removal."""

    threshold: float = Field(
        0.8, gt=0, le=1, description="Jaccard similarity of shingles from which two are near-duplicates"
    )
    ngram: int = Field(5, ge=1, description="words in a shingle")
    permutations: int = Field(128, ge=16, description="length of a MinHash signature; bands are derived from it")
    seed: int = Field(1, description="seed of the permutations")
    bucket_pairs: int = Field(
        64, ge=2, description="up to this many documents in a bucket all pairs are candidates; beyond, neighbours by id"
    )
    source_order: list[str] = Field([], description="sources from most to least trusted: of equals the earlier is kept")
    max_removed_share_per_source: float = Field(
        0.9, ge=0, le=1, description="a source that loses more ends the run: it is seldom meant"
    )
