"""The thresholds for source code, from The Stack and StarCoder 2.

The Stack: `preprocessing/README.md` of github.com/bigcode-project/bigcode-dataset. StarCoder 2: Lozhkov et al. 2024,
the section on preprocessing.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.filter.code.comments import FAMILIES
from tasks.filter.code.config import CodeConfig
from tasks.filter.rules import Section

_STACK = "The Stack"
_TWO = "StarCoder 2, Lozhkov et al. 2024"


class CodeRules(Section):
    """Rules for source code. They apply to documents whose language is known, and replace the rules for prose."""

    measure: CodeConfig = Field(default_factory=CodeConfig, description="how code is measured")
    instead_of: list[str] = Field(
        ["language", "gopher_quality", "gopher_repetition", "c4", "fineweb", "quality", "perplexity"],
        description="rules, or sections of rules, that don't apply to source code",
    )
    languages: list[str] | None = Field(
        None, min_length=1, description="programming languages to keep, by linguist's names, or null for all"
    )
    max_lines: int | None = Field(100_000, ge=1, description=f"number of lines ({_TWO})")
    max_mean_line: float | None = Field(100, gt=0, description=f"mean length of lines in characters ({_STACK})")
    max_longest_line: int | None = Field(1000, ge=1, description=f"longest line in characters ({_STACK})")
    long_line_languages: list[str] = Field(
        ["HTML", "JSON", "Markdown", "Roff", "Roff Manpage", "SMT", "TeX", "Text", "XML"],
        description=f"languages whose lines are bounded only by `max_longest_line_of_text` ({_TWO})",
    )
    max_longest_line_of_text: int | None = Field(
        100_000, ge=1, description=f"longest line in characters, in `long_line_languages` ({_TWO})"
    )
    min_alphanumeric: float | None = Field(0.25, ge=0, le=1, description=f"share of letters and digits ({_STACK})")
    min_alphabetic: float | None = Field(0.25, ge=0, le=1, description=f"share of letters ({_TWO})")
    numeric_languages: list[str] = Field(
        ["Motorola 68K Assembly", "WebAssembly"],
        description=f"languages whose share of letters is bounded only by `min_alphanumeric` ({_TWO})",
    )
    max_encoded: float | None = Field(
        0.5, ge=0, le=1, description=f"share of characters in base64, hexadecimal and \\u data ({_TWO})"
    )
    max_longest_encoded: int | None = Field(
        1024, ge=0, description=f"longest run of encoded data in characters ({_TWO})"
    )
    max_numbers: float | None = Field(
        None, ge=0, le=1, description="share of characters in lines of only numbers, such as tables of data"
    )
    min_comments: float | None = Field(
        None, ge=0, le=1, description="share of characters in comments, in `comment_languages` (SantaCoder: 0.01)"
    )
    max_comments: float | None = Field(
        None, ge=0, le=1, description="share of characters in comments, in `comment_languages` (SantaCoder: 0.8)"
    )
    comment_languages: list[str] = Field(
        ["Python", "Java", "JavaScript"],
        description="languages to which `min_comments` and `max_comments` apply (SantaCoder, Ben Allal et al. 2023)",
    )
    max_data_lines: int | None = Field(512, ge=1, description=f"number of lines in `data_languages` ({_TWO})")
    data_languages: list[str] = Field(
        ["Text", "JSON", "YAML", "Web Ontology Language", "Graphviz (DOT)"],
        description=f"languages in which long files are data ({_TWO})",
    )
    min_visible: float | None = Field(
        0.2, ge=0, le=1, description="share of HTML's characters that a reader sees (StarCoder, Li et al. 2023)"
    )
    min_visible_characters: int | None = Field(
        100, ge=0, description="characters of HTML that a reader sees (StarCoder, Li et al. 2023)"
    )
    generated: bool = Field(False, description="keep generated files, which have a mark in their name or first lines")
    licences: list[str] | None = Field(
        None,
        description="licences that a header may name, as SPDX identifiers, `proprietary` or `unknown`, or null for "
        "all. Files without a header pass",
    )

    @model_validator(mode="after")
    def _comments_are_known(self) -> Self:
        unknown = sorted(set(self.comment_languages) - set(FAMILIES))
        if unknown:
            raise ValueError(
                f"comments of {', '.join(unknown)} can't be recognised: choose from {', '.join(sorted(FAMILIES))}"
            )
        return self
