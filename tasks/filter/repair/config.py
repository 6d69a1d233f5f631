"""The settings of the repairs that texts undergo before anything is measured."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class RepairConfig(StageConfig):
    """Repairs of texts. Each changes the text for all later stages, and the ledger records it."""

    encoding: bool = Field(
        True, description="undo mojibake, text decoded with the wrong encoding: â€™ becomes ’ (ftfy)"
    )
    html_entities: bool = Field(
        False,
        description="decode HTML entities such as &eacute;, except in texts with a <, which may be about HTML (ftfy)",
    )
    control_characters: bool = Field(
        True, description="remove ineffective control and invisible characters, and turn all line ends into line feeds"
    )
    white_space: bool = Field(
        True, description="remove trailing white space, and blank lines after the second in a row"
    )
    line_breaks: bool = Field(
        False, description="unwrap paragraphs that were wrapped at a fixed width, and rejoin hyphenated words"
    )
