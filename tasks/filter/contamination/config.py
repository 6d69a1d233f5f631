"""Which overlap with a benchmark counts as contamination."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.stage.config import StageConfig

QUESTIONS = "questions.jsonl"  # how much of each benchmark question is in the documents


class ContaminationConfig(StageConfig):
    """Overlap of word n-grams, as for GPT-3 (Brown et al. 2020, appendix C)."""

    ngram: int = Field(13, ge=2, le=64, description="n-gram length in words; GPT-3: 13")
    min_words: int = Field(
        8,
        ge=2,
        description="shortest question in words that is matched; a question shorter than `ngram` is matched whole",
    )
    max_documents: int = Field(
        10, ge=1, description="an n-gram in more documents is a common phrase and not contamination; GPT-3: 10"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_words > self.ngram:
            raise ValueError(f"min_words {self.min_words} is more than ngram {self.ngram}")
        return self
