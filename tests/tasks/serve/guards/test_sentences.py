"""Guards of sentences: the toxicity classifier, a user's function, and a user's classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage.errors import ConfigError, SourceError
from tasks.serve.guards import Finding, Guards, GuardsConfig
from tests.tasks.filter.tiny_classifier import save_classifier
from tests.tasks.serve.guards.ready import cut, guards, outcome

SHOUTS = """
def measure(texts):
    if any("boom" in text for text in texts):
        raise ValueError("no")
    return {"score": [text.count("!") for text in texts]}
"""


@pytest.fixture
def shouting(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "shouts.py").write_text(SHOUTS)
    return {"measure": {"kind": "python", "file": str(tmp_path / "shouts.py")}, "max": {"score": 1}}


def test_a_users_function_is_asked_about_each_sentence(shouting: dict[str, Any]) -> None:
    text = "All is calm. Go away!!! It said “no!!” Then\nno more. A boom is heard. End"
    for size in (1, 4, 1000):
        released, found, _ = outcome({"own": {"shout": shouting}}, cut(text, size))
        assert released == "All is calm. <SHOUT> <SHOUT> Then\nno more. <SHOUT> End"
        assert {*found} == {Finding("own.shout", "mask", "output", 2), Finding("own.shout failed", "mask", "output", 1)}
    assert guards({"own": {"shout": shouting}}).check_input([text]).texts == (released,)


def test_only_a_guard_that_acts_holds_sentences_back(shouting: dict[str, Any]) -> None:
    masks, reports = ({"own": {"shout": shouting | {"action": action}}} for action in ("mask", "allow"))
    assert guards(masks).output().feed("A river flows past t") == ""
    guard = guards(reports).output()
    assert guard.feed("A river flows!! past t") == "A river flows!! past "
    guard.finish()
    assert guard.findings == [Finding("own.shout", "allow", "output")]


def test_a_long_sentence_is_cut() -> None:
    guard = guards({"toxicity": {"action": "refuse"}}).output()
    sent = guard.feed("river " * 150)
    assert 0 < len(sent) <= 900
    assert guard.feed("ends. You are a stupid idiot, you fucking bitch. And") == f"{'river ' * 150}ends. "[len(sent) :]
    assert guard.refused == Finding("toxicity", "refuse", "output")


def test_a_users_classifier_ends_an_answer(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "classifier")
    rule = {
        "measure": {"kind": "classifier", "folder": str(folder), "label": "poor"},
        "max": {"highest": 0.9},
        "action": "refuse",
    }
    policy = {"own": {"poor": rule}}
    released, _, refused = outcome(
        policy, cut("The town and the river of history. Click buy cheap offer login cookie. No.", 5)
    )
    assert released == "The town and the river of history. "
    assert refused == Finding("own.poor", "refuse", "output")
    with pytest.raises(ConfigError, match="2 classifiers"):
        Guards(GuardsConfig.model_validate({"own": {"poor": rule, "other": rule}}))


def test_guards_that_cannot_be_loaded_end_the_start(tmp_path: Path, shouting: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        guards({"toxicity": {"folder": str(tmp_path / "gone")}})
    (tmp_path / "empty.py").write_text("")
    shouting["measure"]["file"] = str(tmp_path / "empty.py")
    with pytest.raises(SourceError, match="lacks the function measure"):
        guards({"own": {"shout": shouting}})
