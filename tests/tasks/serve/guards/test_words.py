"""Listed words and patterns, in requests and in answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from storage.errors import ConfigError, SourceError
from tasks.serve.guards import Guards, GuardsConfig
from tests.tasks.serve.guards.ready import cut, guards, outcome

WORDS = {"lists": {"fruit": {"words": ["Blue Berry", "kiwi", "c++", "東京都", "crème"], "action": "mask"}}}


@pytest.mark.parametrize(
    ("said", "released"),
    [
        ("a kiwi.", "a <FRUIT>."),
        ("KIWI kiwis kiwi's", "<FRUIT> kiwis <FRUIT>'s"),
        ("blue berry blue-berry blue  berry blue. berry blueberry", "<FRUIT> <FRUIT> <FRUIT> blue. berry blueberry"),
        ("blue blue berry", "blue <FRUIT>"),
        ("blue, red and blue", "blue, red and blue"),
        ("k1w1 and k\u200biwi and ki\u0301wi", "<FRUIT> and <FRUIT> and <FRUIT>"),
        ("C++, c+ and c", "<FRUIT>, c+ and c"),
        ("我在東京都。", "我在<FRUIT>。"),
        ("creme cre\u0300me", "<FRUIT> <FRUIT>"),
    ],
)
def test_words_are_found_as_whole_words_however_they_are_written(said: str, released: str) -> None:
    for size in (1, 3, 100):
        assert outcome(WORDS, cut(said, size))[0] == released
    assert guards(WORDS).check_input([said]).texts == (released,)


def test_a_list_is_read_from_its_file_and_applies_where_the_policy_says(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("# names of projects\nfalcon\n\nred fox\n")
    policy = {
        "lists": {"projects": {"files": [str(tmp_path / "words.txt")], "applies_to": ["output"], "action": "refuse"}}
    }
    released, _, refused = outcome(policy, cut("The red fox is ours.", 4))
    assert released == "The "
    assert refused is not None
    assert refused.rule == "lists.projects"
    assert guards(policy).check_input(["The red fox."]).action == "allow"
    with pytest.raises(SourceError, match="can't be read"):
        guards({"lists": {"projects": {"files": [str(tmp_path / "gone.txt")]}}})


def test_a_pattern_holds_text_back_while_it_may_match() -> None:
    policy = {"lists": {"code": {"patterns": [r"\bOP-\d{4}(?:-[A-Z]{2})?\b"], "longest": 12}}}
    for size in (1, 2, 7, 100):
        assert (
            outcome(policy, cut("See OP-1234, OP-1234-XY or OP-12345 now.", size))[0]
            == "See <CODE>, <CODE> or OP-12345 now."
        )
    guard = guards(policy).output()
    assert guard.feed("Take OP") == "Take "
    assert guard.feed("EN now, ") == "OPEN now,"


def test_a_longer_match_to_the_left_wins_though_a_shorter_one_is_there_first() -> None:
    policy = {"lists": {"secret": {"patterns": ["black (?:swan|sheep) deal|swan"], "longest": 20}}}
    for size in (1, 4, 100):
        assert outcome(policy, cut("The black swan deal of a swan.", size))[0] == "The <SECRET> of a <SECRET>."


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(\w+\s?)*\d", r"(?:a|aa)+b", r"(x+x+)+y"])
def test_patterns_that_take_too_long_are_refused_at_the_start(pattern: str) -> None:
    with pytest.raises(ConfigError, match="takes too long"):
        Guards(GuardsConfig.model_validate({"lists": {"slow": {"patterns": [pattern]}}}))


@pytest.mark.parametrize(("pattern", "why"), [("(", "not a regular expression"), ("a*", "matches the empty text")])
def test_patterns_that_find_nothing_are_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        GuardsConfig.model_validate({"lists": {"odd": {"patterns": [pattern]}}})


def test_a_pattern_that_takes_too_long_on_some_text_ends_the_answer() -> None:
    policy = {"lists": {"slow": {"patterns": [r"(?:q|qq|[p-r])+(?:q|qq)+ZZ"], "longest": 1000}}}
    try:
        ready = guards(policy)
    except ConfigError:
        return  # found at the start
    guard = ready.output()
    guard.feed("q" * 5000)
    assert guard.finish() == ""
    assert guard.refused is not None
