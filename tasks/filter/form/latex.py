"""LaTeX formulas in texts, found in linear time.

As in Pandoc's Markdown, a single dollar opens a formula if no white space follows it. It closes one if it neither
follows white space nor precedes a digit: "$5 and $10" is money. Double dollars, brackets with a backslash and
environments mark formulas as well. A mark that is never closed is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pydantic import Field

from tasks.stage.config import StageConfig

_MARKS = re.compile(r"\\\\|\\\$|\$\$|\$|\\\(|\\\[|\\begin\{([A-Za-z]+)(\*?)\}")
_CLOSING = {"\\(": "\\)", "\\[": "\\]", "$$": "$$"}
_DOLLAR = re.compile(r"\\.|\$|\n\s*\n", re.DOTALL)


class MathematicsConfig(StageConfig):
    """Settings that say what a LaTeX formula is."""

    environments: list[str] = Field(
        ["equation", "align", "gather", "multline", "eqnarray", "math", "displaymath", "alignat", "flalign", "array"],
        description="environments that contain formulas, with or without a star",
    )
    longest_inline: int = Field(
        400, ge=1, description="maximum characters of a formula between single dollars: two prices are not a formula"
    )


def formulas(text: str, environments: Sequence[str], longest_inline: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of each formula with its marks, in order. None contains another."""
    known = frozenset(environments)
    lost: set[str] = set()  # closing marks that don't occur again: searching for them each time would be quadratic
    at = 0
    while mark := _MARKS.search(text, at):
        at = mark.end()
        if mark[0] == "$":
            end = _dollar_end(text, at, longest_inline)
        else:
            if mark[1]:
                closing = f"\\end{{{mark[1]}{mark[2]}}}" if mark[1] in known else ""
            else:
                closing = _CLOSING.get(mark[0], "")
            if not closing or closing in lost:
                continue
            place = text.find(closing, at)
            end = place + len(closing) if place >= 0 else -1
            if place < 0:
                lost.add(closing)
        if end >= 0:
            yield mark.start(), end
            at = end


def without_formulas(text: str, config: MathematicsConfig) -> str:
    """The text with a space in place of each formula."""
    parts, at = list[str](), 0
    for begin, end in formulas(text, config.environments, config.longest_inline):
        parts += [text[at:begin], " "]
        at = end
    return "".join([*parts, text[at:]])


def _dollar_end(text: str, at: int, longest: int) -> int:
    """The end of the formula that a single dollar before `at` opens, or -1."""
    if at >= len(text) or text[at].isspace():
        return -1
    stop = min(len(text), at + longest + 1)
    while closing := _DOLLAR.search(text, at, stop):
        if closing[0] == "$":
            end = closing.end()
            is_end = not text[end - 2].isspace() and not text[end : end + 1].isdigit()
            return end if is_end else -1
        if closing[0][0] == "\n":
            return -1  # no formula goes beyond its paragraph
        at = closing.end()
    return -1
