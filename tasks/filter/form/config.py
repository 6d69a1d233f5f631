"""What measuring the form of texts needs to know. The thresholds over what is measured stand in `rules.py`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from tasks.stage.config import StageConfig

Word = Annotated[str, StringConstraints(pattern=r"^\S+$")]


class C4LineRules(StageConfig):
    """Which lines C4 keeps (Raffel et al. 2020, section 2.2, and `c4_utils.py` in tensorflow_datasets)."""

    terminal_punctuation: bool = Field(
        True, description="drop a line that does not end in . ? ! \" or ', or that ends in ..."
    )
    min_words: int = Field(3, ge=0, description="drop a line of fewer words")
    max_word_length: int = Field(1000, ge=1, description="characters; drop a line with a longer word")
    javascript: bool = Field(True, description='drop a line with "javascript"')
    policy: bool = Field(True, description='drop a line with a phrase such as "privacy policy" or "use cookies"')
    citations: bool = Field(True, description='cut "[1]", "[edit]" and "[citation needed]" out of a line')


class FormConfig(StageConfig):
    """Word list, lengths and line rules; all else is as the papers have it."""

    stop_words: list[Word] = Field(
        ["the", "be", "to", "of", "and", "that", "have", "with"],
        min_length=1,
        description="words counted as stop words, as they stand between white space (Gopher, appendix A.1.1)",
    )
    short_line_length: int = Field(30, ge=0, description="characters; a line up to here is short (FineWeb)")
    c4: C4LineRules = Field(default_factory=C4LineRules, description="which lines C4 keeps")
