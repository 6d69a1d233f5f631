"""LaTeX formulas are found, money isn't one, and mathematics is exempt from the rules that count symbols."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.shards.documents import Document
from tasks.filter.form.config import FormConfig
from tasks.filter.form.latex import MathematicsConfig, formulas, without_formulas
from tasks.filter.form.measure import measure_form
from tasks.filter.mathematics.measure import measure_mathematics
from tests.tasks.filter.code.test_code import run
from tests.tasks.filter.linear import linear_time
from tests.tasks.filter.test_filter import GOOD

CONFIG = MathematicsConfig()


def found(text: str) -> list[str]:
    return [text[begin:end] for begin, end in formulas(text, CONFIG.environments, CONFIG.longest_inline)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Let $x^2$ be $y$.", ["$x^2$", "$y$"]),
        (r"\(a\) and \[b\] and $$c$$", [r"\(a\)", r"\[b\]", "$$c$$"]),
        (r"\begin{align*} a &= b \\ c \end{align*}", [r"\begin{align*} a &= b \\ c \end{align*}"]),
        (r"\begin{itemize} $a$ \end{itemize}", ["$a$"]),
        ("It costs $5 and $10.", []),
        ("From $5 to $ 10$ a piece", []),
        (r"\$5 and \$6", []),
        (r"$\$5$", [r"$\$5$"]),
        ("$a\n\nb$", []),
        (r"a line \\[2pt] and ]", []),
        (r"$$ never closed, but $a$ is", ["$a$"]),
        ("$" + "a" * 500 + "$", []),
        ("$", []),
        ("", []),
    ],
)
def test_formulas_are_what_latex_marks(text: str, wanted: list[str]) -> None:
    assert found(text) == wanted


@given(st.lists(st.sampled_from(["$", "$$", "\\", "\\(", "\\)", "a", " ", "1", "\n\n", r"\begin{math}"])).map("".join))
@settings(max_examples=300, deadline=None)
def test_formulas_never_overlap_and_shares_are_shares(text: str) -> None:
    places = list(formulas(text, CONFIG.environments, CONFIG.longest_inline))
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(places))
    (row,) = measure_mathematics(CONFIG, pa.array([text])).to_pylist()
    assert row["mathematics_formulas"] == len(places)
    assert 0 <= row["mathematics_share"] <= 1


def test_mathematics_is_spared_the_rules_that_count_symbols(tmp_path: Path) -> None:
    formula = r"$\sum_{i} 1$ = $2$ + $3$ = $4$ - $5$ . "
    text = f"{GOOD} {formula * 12}"
    money = Document.new(f"{GOOD} {'$5 + $6 = . ' * 40}", "a")
    plain, dressed = Document.new(text.replace("$", "#"), "a"), Document.new(text, "a")
    rules = {"gopher_repetition": None, "c4": {}, "pii": {"action": "keep"}}
    kept, verdicts, _ = run(tmp_path / "on", [plain, dressed, money, Document.new(GOOD, "a")], mathematics={}, **rules)
    assert dressed.id in kept
    assert verdicts[plain.id].reason.startswith("gopher_quality.")
    assert verdicts[money.id].reason.startswith("gopher_quality.")
    _, verdicts, _ = run(tmp_path / "off", [dressed, Document.new(GOOD, "a")], **rules)
    assert verdicts[dressed.id].reason.startswith("gopher_quality.")


@pytest.mark.soak
def test_time_is_linear() -> None:
    with linear_time():
        for mark in ("$a ", "$$", r"\(", r"\begin{math}", "$a", r"\[ $", "\\"):
            found(mark * 300_000)


def test_words_are_those_of_the_prose_where_formulas_are_left_out() -> None:
    text = r"Let $x + y = 3$ be a sum of $$ \# 4 5 6 7 $$ numbers: \(1\)-dimensional."
    prose = "Let   be a sum of   numbers:  -dimensional."
    assert without_formulas(text, CONFIG) == prose
    (left_out,) = measure_form(FormConfig(formulas=CONFIG), pa.array([text])).to_pylist()
    (plain,) = measure_form(FormConfig(), pa.array([prose])).to_pylist()
    (whole,) = measure_form(FormConfig(), pa.array([text])).to_pylist()
    apart = {name for name in whole if left_out[name] != whole[name]}
    assert apart == {"words", "mean_word_length", "hashes_per_word", "alphabetic_words"}
    assert {name: left_out[name] for name in apart} == {name: plain[name] for name in apart}


def test_rules_over_words_judge_the_prose_of_mathematics(tmp_path: Path) -> None:
    formula = r"$\sum_{i} 1 = 2 + 3 = 4 - 5$. "
    dressed = Document.new(f"{GOOD} {formula * 12}", "a")
    bad = Document.new(f"{GOOD} {'= 1 2 3 ' * 60} {formula * 12}", "a")
    rules = {"gopher_repetition": None, "c4": {}, "fineweb": None, "pii": {"action": "keep"}, "mathematics": {}}
    given = [dressed, bad, Document.new(GOOD, "a")]
    kept, _, _ = run(tmp_path / "spared", given, **(rules | {"gopher_quality": {"min_stop_words": None}}))
    assert {dressed.id, bad.id} <= set(kept), "spared whatever its prose is"
    kept, verdicts, _ = run(
        tmp_path / "left out", given, form={"formulas": {}}, **(rules | {"gopher_quality": {"min_stop_words": None}})
    )
    assert dressed.id in kept
    assert verdicts[bad.id].reason.startswith("gopher_quality.")
