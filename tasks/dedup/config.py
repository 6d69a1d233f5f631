"""What a profile chooses about deduplication."""

from __future__ import annotations

from pydantic import Field

from tasks.config import StageConfig


class DedupConfig(StageConfig):
    """Exact duplicates always go; near-duplicates go from `similarity` on."""

    similarity: float = Field(
        0.8, gt=0, le=1, description="Jaccard of two shingle sets from which documents are near-duplicates"
    )
    ngram: int = Field(5, ge=1, description="words a shingle; shorter documents have one shingle of all their words")
    permutations: int = Field(128, ge=8, le=1024, description="hash values a MinHash signature")
    recall_weight: float = Field(
        0.95,
        gt=0,
        lt=1,
        description="weight of missed pairs against needless comparisons when bands are chosen; "
        "a needless one costs time only, since every pair is verified",
    )
    bucket_window: int = Field(
        64, ge=1, description="members of a bucket, in id order, that each member is compared with"
    )
    seed: int = Field(1, ge=0, description="of the permutations")
    source_order: tuple[str, ...] = Field(
        (), description="of equally long duplicates the earliest source here is kept; unnamed sources follow by name"
    )
    max_removed_share_per_source: float = Field(
        0.9, ge=0, le=1, description="the run ends when a source loses a larger share of its documents"
    )
