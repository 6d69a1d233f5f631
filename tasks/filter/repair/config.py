"""Which repairs are applied to texts before anything is measured."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class RepairConfig(StageConfig):
    """Each repair changes the text that every later stage sees; the ledger says what it did."""

    encoding: bool = Field(
        True, description="undo mojibake, text decoded with the wrong encoding: â€™ becomes ’ (ftfy)"
    )
    html_entities: bool = Field(
        False,
        description="decode HTML entities such as &eacute;, except in texts with a <, which may be about HTML (ftfy)",
    )
    control_characters: bool = Field(
        True, description="remove control and invisible characters without effect; normalise line ends to line feeds"
    )
    white_space: bool = Field(
        True, description="remove trailing white space, and blank lines after the second in a row"
    )
    line_breaks: bool = Field(
        False, description="unwrap paragraphs that were wrapped at a fixed width, and rejoin hyphenated words"
    )
