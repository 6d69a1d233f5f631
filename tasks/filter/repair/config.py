"""Which repairs are made, before anything is measured."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class RepairConfig(StageConfig):
    """Each repair changes the text that every later stage sees; the ledger says what it did."""

    encoding: bool = Field(True, description="undo mojibake, text decoded by the wrong encoding: â€™ becomes ’ (ftfy)")
    html_entities: bool = Field(
        False, description="&eacute; becomes é, but in texts that hold a <: these speak of HTML (ftfy)"
    )
    control_characters: bool = Field(
        True, description="drop control and invisible characters that do nothing; every line ends with a line feed"
    )
    white_space: bool = Field(True, description="drop blanks at a line's end, and blank lines from the third on")
    line_breaks: bool = Field(
        False,
        description="join the lines of paragraphs wrapped at a fixed width, and words hyphenated there",
    )
