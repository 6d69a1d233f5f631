"""Config of the tokenizer stage."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from models.tokenizer import SPECIAL_TOKENS
from tasks.stage.config import StageConfig
from tasks.tokenizer.patterns import PatternName

BYTE_TOKENS = 256
OF_NEW = ("vocab_size", "reserved_tokens", "pattern", "keep")  # settings of a new vocabulary only


class TokenizerConfig(StageConfig):
    """The vocabulary, or more tokens for that of a base, and the text to learn from."""

    extend: int | None = Field(
        None,
        ge=1,
        le=1 << 20,
        exclude_if=lambda value: value is None,
        description="of a base that is trained on documents: number of tokens to learn on them and to append to its "
        "vocabulary. Old texts without them keep their ids. vocab_size, reserved_tokens, pattern and keep are then the "
        "base's own (null: the base's tokenizer as it is)",
    )
    vocab_size: int = Field(
        4096, ge=1, le=1 << 20, description="number of ids: special tokens, reserved tokens, 256 bytes and merges"
    )
    reserved_tokens: int = Field(
        0,
        ge=0,
        description="number of special tokens <|reserved_0|>, <|reserved_1|>, … for your own use, with the ids after "
        "the pipeline's. They do not occur in training until you use them",
    )
    pattern: PatternName = Field(
        "gpt2",
        description="how text is split into pre-tokens before merging. No token crosses a boundary. gpt2: runs of "
        "letters, of digits of any length, or of other characters, each with one preceding space. White space in one "
        "run except for its last character. gpt4 and llama3 split alike and differ in name only: digits in groups of "
        "three from the left, one space or other character goes with the letters after it, white space ends at its "
        "last line break, contractions in upper case too",
    )
    sample_bytes_per_source: int = Field(
        50_000_000, ge=1, description="UTF-8 bytes per source to learn merges from. Whole documents, selected by hash"
    )
    min_frequency: int = Field(2, ge=1, description="minimum count of a pair to be merged")
    keep: str | None = Field(
        None,
        description="an earlier tokenizer with its version, such as tiny/tokenizer@1, to use unchanged: with more "
        "documents nothing is retrained and only new shards are tokenized. vocab_size, reserved_tokens and pattern "
        "must match it",
    )
    compare: dict[str, str] = Field(
        default_factory=dict,
        description="other vocabularies to measure on the same text, as {name: folder}. A folder has a tokenizer.json, "
        "or GPT-2's vocab.json and merges.txt, or a SentencePiece tokenizer.model (needs the extra `sentencepiece`). "
        "Adds only a table and doesn't change the tokenizer",
    )

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """All special tokens, in order of their ids from 0."""
        return (*SPECIAL_TOKENS, *(f"<|reserved_{number}|>" for number in range(self.reserved_tokens)))

    @model_validator(mode="after")
    def _extends_only(self) -> Self:
        given = [name for name in OF_NEW if name in self.model_fields_set and getattr(self, name) is not None]
        if self.extend is not None and given:
            raise ValueError(
                f"extend appends tokens to a base's vocabulary, but {' and '.join(given)} "
                f"{'is' if len(given) == 1 else 'are'} of a new vocabulary: leave out one or the other"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_new(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """An extension's config doesn't have the settings of a new vocabulary."""
        dumped: dict[str, Any] = dump(self)
        return dumped if self.extend is None else {name: dumped[name] for name in dumped if name not in OF_NEW}

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        least = len(SPECIAL_TOKENS) + self.reserved_tokens + BYTE_TOKENS
        if self.vocab_size < least:
            raise ValueError(
                f"vocab_size is {self.vocab_size}, but {len(SPECIAL_TOKENS)} special tokens, {self.reserved_tokens} "
                f"reserved ones and {BYTE_TOKENS} bytes make {least}: raise it, or lower reserved_tokens"
            )
        return self
