"""Which overlap with a benchmark counts as contamination."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.stage.config import StageConfig

QUESTIONS = "questions.jsonl"  # how much of each benchmark question is in the documents
PHRASES = "phrases.jsonl"  # n-grams of benchmarks that don't count, because too many documents have them
SHOWN = 10  # phrases in a table


class ContaminationConfig(StageConfig):
    """Overlap of word n-grams, as for GPT-3 (Brown et al. 2020, appendix C)."""

    ngram: int = Field(13, ge=2, le=64, description="n-gram length in words (GPT-3: 13)")
    min_words: int = Field(
        6,
        ge=2,
        description="minimum words of a matched text that contains the query. A text shorter than `ngram` is matched "
        "whole (GPT-3: 8)",
    )
    min_answer_words: int = Field(8, ge=2, description="minimum words of an answer that is matched without its query")
    min_characters: int = Field(
        20, ge=0, description="minimum letters and digits of a matched text, which excludes texts like `a b a b a b`"
    )
    max_documents: int = Field(
        10,
        ge=1,
        description="maximum documents with an n-gram. In more, it is a common phrase, and counts as contamination "
        "only in a document with the whole query (GPT-3: 10)",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_words > self.ngram:
            raise ValueError(f"min_words {self.min_words} is more than ngram {self.ngram}")
        if self.min_answer_words < self.min_words:
            raise ValueError(f"min_answer_words {self.min_answer_words} is less than min_words {self.min_words}")
        return self
