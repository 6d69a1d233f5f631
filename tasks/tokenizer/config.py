"""Choices of the vocabulary."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from models.tokenizer import SPECIAL_TOKENS
from tasks.stage.config import StageConfig
from tasks.tokenizer.patterns import PatternName

BYTE_TOKENS = 256


class TokenizerConfig(StageConfig):
    """Choices of the vocabulary."""

    vocab_size: int = Field(4096, ge=1, description="ids in all: special tokens, reserved ones, 256 bytes, merges")
    reserved_tokens: int = Field(
        0,
        ge=0,
        description="special tokens <|reserved_0|>, <|reserved_1|>, … for purposes of your own, with the ids after the "
        "pipeline's; a model never meets them in training until you use them",
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
    keep: str | None = Field(
        None,
        description="an earlier tokenizer with its version, such as tiny/tokenizer@1, taken as it is: more documents "
        "retrain nothing, and only new shards are tokenized; vocab_size, reserved_tokens and pattern must be its own",
    )
    compare: dict[str, str] = Field(
        default_factory=dict,
        description="other vocabularies to measure on the same text, as {name: folder} with a tokenizer.json, with "
        "GPT-2's vocab.json and merges.txt, or with a SentencePiece tokenizer.model; a table, no part of the tokenizer",
    )

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """All of them in the order of their ids, from 0."""
        return (*SPECIAL_TOKENS, *(f"<|reserved_{number}|>" for number in range(self.reserved_tokens)))

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        least = len(SPECIAL_TOKENS) + self.reserved_tokens + BYTE_TOKENS
        if self.vocab_size < least:
            raise ValueError(
                f"vocab_size is {self.vocab_size}, and {len(SPECIAL_TOKENS)} special tokens, {self.reserved_tokens} "
                f"reserved ones and {BYTE_TOKENS} bytes make {least}: raise it, or lower reserved_tokens"
            )
        return self
