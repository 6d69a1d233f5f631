"""What counts as a duplicate."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class SketchConfig(StageConfig):
    """What is measured of each document. A change here measures the corpus again; one of the thresholds does not."""

    ngram: int = Field(5, ge=1, description="words in a shingle")
    permutations: int = Field(128, ge=16, description="length of a MinHash signature; bands are derived from it")
    seed: int = Field(1, ge=0, description="seed of the permutations")
    ignore_case: bool = Field(True, description="compare case-folded text")
    ignore_white_space: bool = Field(True, description="compare text with each run of white space as one space")


class SimHashConfig(StageConfig):
    """Near-duplicates by SimHash, beside MinHash: coarser, and blind to where a text was cut."""

    max_distance: int = Field(3, ge=0, le=7, description="bits of 64 in which two near-duplicates may differ")


class SpansConfig(StageConfig):
    """Spans of text that stand in several documents: the span goes from all but one, the documents stay."""

    min_words: int = Field(50, ge=8, description="length from which a repeated span is removed, in words")


class DedupConfig(StageConfig):
    """Exact and near-duplicate removal."""

    threshold: float = Field(
        0.8, gt=0, le=1, description="Jaccard similarity of shingles from which two are near-duplicates"
    )
    sketch: SketchConfig = Field(default_factory=SketchConfig, description="shingles and signatures, measured once")
    bucket_pairs: int = Field(
        64, ge=2, description="up to this many documents in a bucket are compared pair by pair; beyond, by leaders"
    )
    source_order: list[str] = Field([], description="sources from most to least trusted: of equals the earlier is kept")
    max_removed_share_per_source: float = Field(
        0.9, ge=0, le=1, description="a source that loses more ends the run: it is seldom meant"
    )
    against: list[str] = Field(
        [], description="earlier dedup artifacts (refs or locations) whose documents count as kept already"
    )
    simhash: SimHashConfig | None = Field(None, description="also compare by SimHash; off by default")
    spans: SpansConfig | None = Field(None, description="also remove repeated spans of text; off by default")
