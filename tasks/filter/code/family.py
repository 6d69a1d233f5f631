"""Source code as a filter family: its rules apply only to code, where they replace the rules for prose.

The thresholds are from The Stack (`preprocessing/README.md` of github.com/bigcode-project/bigcode-dataset) and from
StarCoder 2 (Lozhkov et al. 2024, the section on preprocessing).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from storage.shards.arrays import Bool
from tasks.filter.code.comments import FAMILIES
from tasks.filter.code.measure import CodeConfig, code_signals
from tasks.filter.family import Family, Spared, measuring_half
from tasks.filter.rules import Bound, Member, Rule, Section, Tested, Turn, Where

_STACK = "The Stack"
_TWO = "StarCoder 2, Lozhkov et al. 2024"

LANGUAGE, GENERATED, LICENCE = "code_language", "code_generated", "code_licence"  # signals


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


@dataclass(frozen=True)
class Named:
    """A document passes when a signal is "" or one of `allowed`. The ledger shows the signal."""

    name: str
    signal: str
    allowed: tuple[str, ...] = ()
    threshold: float | None = None
    turn: Turn = Turn.USUAL

    def test(self, signals: pa.RecordBatch) -> Tested:
        """See `Rule`."""
        passing = pc.is_in(signals[self.signal], pa.array(["", *self.allowed], pa.string()))
        fails = ~passing.to_numpy(zero_copy_only=False)
        return Tested(fails, np.zeros(len(fails), np.bool_), fails.astype(np.float64))

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """The signal itself."""
        return signals[self.signal]


def is_code(signals: pa.RecordBatch) -> Bool:
    """Mark the documents that are source code."""
    code: Bool = signals[LANGUAGE].is_valid().to_numpy(zero_copy_only=False)
    return code


def _written_in(languages: Sequence[str], inside: bool, signals: pa.RecordBatch) -> Bool:
    """Mark the documents that are code in one of these languages or, unless `inside`, in any other."""
    member: Bool = pc.is_in(signals[LANGUAGE], pa.array(languages, pa.string())).to_numpy(zero_copy_only=False)
    return is_code(signals) & (member if inside else ~member)


def _rules(code: CodeRules | None) -> Iterator[Rule]:
    if code is None:
        return
    if code.languages is not None:
        allowed = Member("code.languages", LANGUAGE, tuple(code.languages), "code_mean_line")
        yield Where(allowed, is_code)
    if not code.generated:
        yield Where(Named("code.generated", GENERATED), is_code)
    if code.licences is not None:
        yield Where(Named("code.licences", LICENCE, tuple(code.licences)), is_code)
    long_lines = functools.partial(_written_in, code.long_line_languages)
    numeric = functools.partial(_written_in, code.numeric_languages)
    commented = functools.partial(_written_in, code.comment_languages, True)
    pages = functools.partial(_written_in, ["HTML"], True)
    for field, signal, chosen in (
        ("max_lines", "lines", is_code),
        ("max_data_lines", "lines", functools.partial(_written_in, code.data_languages, True)),
        ("max_longest_line", "longest_line", functools.partial(long_lines, False)),
        ("max_longest_line_of_text", "longest_line", functools.partial(long_lines, True)),
        ("max_mean_line", "mean_line", functools.partial(long_lines, False)),
        ("min_alphanumeric", "alphanumeric", is_code),
        ("min_alphabetic", "alphabetic", functools.partial(numeric, False)),
        ("max_longest_encoded", "longest_encoded", is_code),
        ("max_encoded", "encoded", is_code),
        ("max_numbers", "numbers", is_code),
        ("min_comments", "comments", commented),
        ("max_comments", "comments", commented),
        ("min_visible_characters", "visible_characters", pages),
        ("min_visible", "visible", pages),
    ):
        threshold = getattr(code, field)
        if threshold is not None:
            yield Where(Bound(f"code.{field}", f"code_{signal}", field[:3], float(threshold)), chosen)


def _spares(code: CodeRules | None) -> Spared | None:
    return None if code is None else Spared(tuple(code.instead_of), is_code)


FAMILY = Family(("code",), code_signals, measuring_half, _rules, spares=_spares)
