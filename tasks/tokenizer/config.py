"""Choices of the vocabulary."""

from __future__ import annotations

from pydantic import Field

from models.tokenizer import SPECIAL_TOKENS
from tasks.config import StageConfig
from tasks.tokenizer.patterns import PatternName

BYTE_TOKENS = 256


class TokenizerConfig(StageConfig):
    """Choices of the vocabulary."""

    vocab_size: int = Field(
        4096, ge=BYTE_TOKENS + len(SPECIAL_TOKENS), description="ids in all: special tokens, 256 bytes, merges"
    )
    pattern: PatternName = Field(
        "gpt2",
        description="how text is cut before merging; no token crosses a cut. gpt2: a run of letters, of digits of any "
        "length or of other signs, each with one space before it; white space in one run but for its last character. "
        "gpt4 and llama3 cut alike and differ in name: digits by three from the left, a space or sign goes with the "
        "letters after it, white space ends at its last line break, contractions in capitals too",
    )
    sample_bytes_per_source: int = Field(
        50_000_000,
        ge=1,
        description="UTF-8 bytes of each source that merges are learned from; whole documents, by hash",
    )
    min_frequency: int = Field(2, ge=1, description="a pair seen less often is not merged")
