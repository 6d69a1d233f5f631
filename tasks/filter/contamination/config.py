"""Which overlap with a benchmark counts as contamination."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.stage.config import StageConfig

QUESTIONS = "questions.jsonl"  # how much of each benchmark question is in the documents
PHRASES = "phrases.jsonl"  # n-grams of benchmarks that are in so many documents that they don't count
SHOWN = 10  # of them in a table


class ContaminationConfig(StageConfig):
    """Overlap of word n-grams, as for GPT-3 (Brown et al. 2020, appendix C)."""

    ngram: int = Field(13, ge=2, le=64, description="n-gram length in words; GPT-3: 13")
    min_words: int = Field(
        6,
        ge=2,
        description="shortest text with the query in it, in words, that is matched; what is shorter than `ngram` is "
        "matched whole. GPT-3: 8",
    )
    min_answer_words: int = Field(8, ge=2, description="shortest answer, in words, that is matched without its query")
    min_characters: int = Field(
        20, ge=0, description="letters and digits in what is matched; so that `a b a b a b` is not looked for"
    )
    max_documents: int = Field(
        10,
        ge=1,
        description="an n-gram in more documents is a common phrase, and contamination only where the whole query "
        "stands; GPT-3: 10",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_words > self.ngram:
            raise ValueError(f"min_words {self.min_words} is more than ngram {self.ngram}")
        if self.min_answer_words < self.min_words:
            raise ValueError(f"min_answer_words {self.min_answer_words} is less than min_words {self.min_words}")
        return self
