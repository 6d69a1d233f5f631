"""Config of dedup: the definition of a duplicate."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.stage.config import StageConfig


class SketchConfig(StageConfig):
    """The measurements of each document. Changing them measures the corpus again, changing a threshold doesn't."""

    ngram: int = Field(5, ge=1, le=1000, description="words per shingle. In scripts without spaces, characters")
    permutations: int = Field(
        128, ge=16, le=4096, description="length of a MinHash signature. Bands are derived from it"
    )
    seed: int = Field(1, ge=0, lt=2**32, description="seed for the MinHash permutations")
    ignore_case: bool = Field(True, description="compare case-folded text")
    ignore_white_space: bool = Field(True, description="treat each run of white space as a single space")


class SimHashConfig(StageConfig):
    """Near-duplicates by SimHash in addition to MinHash: coarser, and less sensitive to where a text was cut."""

    max_distance: int = Field(3, ge=0, le=7, description="largest Hamming distance between near-duplicates, of 64 bits")


class SpansConfig(StageConfig):
    """Spans of text that several documents share: the span is removed from all but one, the documents are kept."""

    min_words: int = Field(
        50,
        ge=8,
        le=10_000,
        description="minimum length of a repeated span, in words. In scripts without spaces, characters",
    )


class SentencesConfig(StageConfig):
    """Runs of sentences that occurred before, as C4 removes them: all but one occurrence go, the documents are kept."""

    count: int = Field(3, ge=1, le=100, description="consecutive sentences that are removed if they occurred before")


class LinesConfig(StageConfig):
    """Lines that several documents of a host share, after CCNet: all but one occurrence go, the documents are kept."""

    documents: int = Field(3, ge=2, description="documents that share a line for it to be removed")
    by: Literal["host", "source"] = Field(
        "host", description="compare documents of the same host, by the URL in their metadata, or of the same source"
    )


class DedupConfig(StageConfig):
    """Exact and near-duplicate removal."""

    threshold: float = Field(
        0.8, gt=0, le=1, description="minimum Jaccard similarity of the shingles of near-duplicates"
    )
    sketch: SketchConfig = Field(default_factory=SketchConfig, description="shingles and signatures, computed once")
    bucket_pairs: int = Field(
        64,
        ge=2,
        le=4096,
        description="largest bucket that is compared pair by pair. Larger ones are compared by leaders",
    )
    source_order: list[str] = Field(
        [],
        description="sources from most to least trusted: of duplicates, the one of the first source is kept. "
        "Sources that aren't named come last, and those of `synthesise` after them",
    )
    max_removed_share_per_source: float = Field(
        0.9,
        ge=0,
        le=1,
        description="largest share of a source that may be removed. More ends the run with an error. Copies of what "
        "the artifacts of `against` kept don't count",
    )
    against: list[str] = Field(
        [],
        description="earlier dedup artifacts (refs or locations). Duplicates of what they kept are removed. If nothing "
        "is left, the run ends here, without an error",
    )
    simhash: SimHashConfig | None = Field(None, description="also find near-duplicates by SimHash. Off by default")
    sentences: SentencesConfig | None = Field(None, description="also remove repeated sentences. Off by default")
    lines: LinesConfig | None = Field(None, description="also remove lines that a host repeats. Off by default")
    spans: SpansConfig | None = Field(None, description="also remove repeated spans of text. Off by default")

    def named_sources(self) -> dict[str, list[str]]:
        """The sources of documents that this config names, by the path of the field. Empty with `against`, as the
        sources of earlier artifacts aren't known here."""
        return {} if self.against else {"source_order": self.source_order}
