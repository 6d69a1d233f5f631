"""The condition of a text beside the same written plainly, character by character."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.dedup.keeping import kernels
from tasks.dedup.keeping.condition import conditions, traits
from tasks.text.characters import SIZE
from tests.hard_texts import TEXTS


def misread(first: str, second: str) -> bool:
    if not traits().traits[min(ord(second), SIZE - 1)] & kernels.TRAIL:
        return False
    if first == "â":
        return second in "€‚„†…" or "\x80" <= second <= "\x86"
    return second in "»¿Ÿ\x9f" if first in "ïð" else first in "ÂÃÅÐÑ"


def line_of(line: str) -> tuple[int, int, bool]:
    """(defects, characters, whether it is of text)."""
    table, weights = traits()
    kinds = [int(table[ord(c)]) if ord(c) < SIZE else kernels.VISIBLE for c in line]
    defects = sum(kind & kernels.DEFECT != 0 for kind in kinds) + sum(map(misread, line, line[1:]))
    visible = [place for place, kind in enumerate(kinds) if kind & kernels.VISIBLE]
    if not visible:
        return defects, 0, False
    runs = "".join(" " if kind & kernels.BLANK else "x" for kind in kinds[visible[0] :])
    defects += sum(len(run) > 1 for run in runs.rstrip(" ").split("x")) + runs.endswith(" ")
    length = sum(int(weights[ord(line[place])]) if ord(line[place]) < SIZE else 1 for place in visible)
    bars = sum(kind & kernels.BAR != 0 for kind in kinds)
    colon = any(
        a == ":" and kinds[place + 1] & kernels.BLANK and place + 2 < len(line) for place, a in enumerate(line[:-1])
    )
    last = next((kind for kind in reversed(kinds) if not kind & kernels.NEUTRAL), 0)
    text = bool(last & kernels.END) or ((length >= kernels.LONG or colon) and bars < kernels.BARS)
    return defects, len(visible), text


def plainly(text: str) -> tuple[int, int, int, int]:
    defects = prose = rest = longest = 0
    empty = 0
    lines = text.split("\n")
    for line in lines[:-1] if lines[-1] == "" else lines:
        found, size, is_text = line_of(line.removesuffix("\r"))
        defects += found + line.endswith("\r") + (size // kernels.LONGEST if size else empty > 0)
        empty = 0 if size else empty + 1
        longest = max(longest, size)
        prose, rest = prose + size * is_text, rest + size * (not is_text)
    return defects, prose, rest, longest


LINES = st.one_of(
    TEXTS,
    st.text(st.sampled_from("a .:|\t\n\r\x00é\u0301Ã©â€ï»\u00a0字。”•"), max_size=60),
    st.text(st.sampled_from("a .:|\t"), min_size=60, max_size=200),
)


@pytest.mark.shadow("tasks.dedup.keeping.kernels.examine")
@given(st.lists(st.lists(LINES, max_size=4).map("\n".join), min_size=1, max_size=5))
@example(
    ["a: b", "a:", "a: ", "  a  b ", "a \r\n\n\n\nb.”", "Home | News | Sport | " + "x" * 99, "字" * 15, "x" * 2001]
)
@settings(max_examples=300)
def test_defects_and_lines_of_text_are_counted(texts: list[str]) -> None:
    found = conditions(pa.array(texts, pa.string()))
    assert list(zip(*(column.tolist() for column in found), strict=True)) == [plainly(text) for text in texts]


@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        ("naïve café “quoted” … – ÂME à Été, DÉJÀ «VU»", 0),
        ("日本語のテキスト。", 0),
        ("naÃ¯ve", 1),
        ("itâ€™s", 1),
        ("cafe\u0301", 1),
        ("a\u200bb", 1),
        ("\ufeffa", 1),
        ("a\ufffdb", 1),
        ("a  b", 1),
        ("a\u00a0b", 1),
        ("a\tb", 0),
        ("    indented", 0),
        ("a\r\n", 1),
        ("a\n\nb", 0),
        ("a\n\n\nb", 1),
        ("ðŸ˜€", 1),
        ("a\x07", 1),
        ("", 0),
        ("\n\n\n", 2),
    ],
)
def test_what_needs_repair(text: str, repairs: int) -> None:
    assert conditions(pa.array([text])).repairs.tolist() == [repairs]
