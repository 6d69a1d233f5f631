"""The section `evaluate.language` of a profile."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tasks.stage.config import StageConfig

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class LanguageConfig(StageConfig):
    """Texts besides the held-out documents, and how much of them to measure."""

    files: dict[FileName, Annotated[str, Field(min_length=1)]] = Field(
        {},
        description="text files whose perplexity is measured, by name: plain text, which is one document, or JSON "
        "Lines (.jsonl) with a document's `text` per line. Either may be compressed (.gz)",
    )
    validation_tokens: int | None = Field(
        None, ge=1, description="held-out tokens to measure, evenly spread (default: all)"
    )
    context: int | None = Field(
        None,
        ge=1,
        description="tokens of a window of `files` (default: the model's context, as in lm-evaluation-harness)",
    )
    bins: int = Field(15, ge=2, le=100, description="bins of the calibration, with equally many tokens each")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="dtype of computation. auto: float32 on a CPU, that of the model's weights on a GPU"
    )
