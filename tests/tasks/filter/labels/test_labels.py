"""`gristmill label`: the sample, labels by keys and by an endpoint, continuing, undo, agreement, and training."""

from __future__ import annotations

import io
import json
import os
import pty
import random
import re
import select
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, SourceError
from storage.shards.documents import Document, shard_name, write_documents
from storage.store import Store
from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import dedup
from tasks.endpoint.reply import Reply
from tasks.filter.fasttext_model.config import LabelledFile
from tasks.filter.fasttext_model.labelled import read_labelled
from tasks.filter.labels.ask import label_in
from tasks.filter.labels.file import LABELS, LabelFile, agreement, read_labels
from tasks.filter.labels.sample import Item, sample_items
from tasks.filter.side_files import write_signals
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tests.flows.commands.test_cli import gristmill
from tests.runtimes import runtime_of
from tests.tasks.endpoint.completions import Said, serve

QUESTION = "Is it toxic?"
NUMBER = re.compile(r"number (\d+)")


def texts(size: int = 200) -> list[Document]:
    """Texts of three sources, one of them rare. Each sentence contains its text's number."""
    words, made = random.Random(1), []
    for number in range(size):
        sentences = [" ".join(words.choices(["river", "hill", "town", "sea"], k=9)) for _ in range(30)]
        text = " ".join(f"Number {number} {sentence}.".replace("Number", "The number") for sentence in sentences)
        made.append(Document.new(text, "rare" if number % 50 == 0 else ("books", "web")[number % 2]))
    return made


def score_of(column: pa.Array) -> pa.RecordBatch:
    numbers = [float(NUMBER.search(text)[1]) for text in column.to_pylist()]  # type: ignore[index]
    return pa.record_batch({"score": pa.array(numbers, pa.float64())})


def write(folder: Path, rows: list[Document], shards: int = 3) -> Artifact:
    for shard in range(shards):
        write_documents(folder / shard_name(shard), rows[shard::shards])
    return Artifact.at(folder)


def scores(folder: Path, documents: Artifact) -> Artifact:
    out = Output.at(folder, stage="score", runtime=runtime_of(workers=1))
    write_signals(score_of, documents, out)
    return Artifact.at(out.path)


def test_every_source_has_its_share_whatever_the_order_of_shards(tmp_path: Path) -> None:
    rows = texts()
    items = sample_items(write(tmp_path / "a", rows), 12, 200)
    assert Counter(item.source for item in items) == {"books": 4, "web": 4, "rare": 4}
    random.Random(3).shuffle(rows)
    assert sample_items(write(tmp_path / "b", rows, 5), 12, 200) == items
    assert len(sample_items(Artifact.at(tmp_path / "a"), 1000, 200)) == 200


def test_an_excerpt_is_whole_sentences_of_its_document_and_not_the_whole_book(tmp_path: Path) -> None:
    rows = {row.id: row.text for row in texts()}
    for item in sample_items(write(tmp_path, texts()), 50, 300):
        assert item.text in rows[item.document]
        assert 100 <= len(item.text.encode()) <= 400
        assert item.text.startswith("The number")
        assert item.text.endswith(".")


def test_by_a_score_its_extremes_are_not_left_to_chance(tmp_path: Path) -> None:
    documents = write(tmp_path / "in", [row._replace(source="one") for row in texts(1000)])
    items = sample_items(documents, 50, 200, scores(tmp_path / "score", documents), "score")
    drawn = np.array([int(NUMBER.search(item.text)[1]) for item in items])  # type: ignore[index]
    assert ((drawn < 10).sum(), (drawn >= 990).sum()) == (10, 10), "a fifth each for the last of a hundred"
    with pytest.raises(ConfigError, match="signals lack mood"):
        sample_items(documents, 50, 200, scores(tmp_path / "again", documents), "mood")
    others = write(tmp_path / "others", texts(999))
    with pytest.raises(DamagedArtifact, match="don't belong to these documents"):
        sample_items(others, 50, 200, scores(tmp_path / "third", documents), "score")


def item(number: int) -> Item:
    return Item(f"id{number}", f"document{number}", "web", f"text {number}")


def test_labels_survive_a_kill_and_the_last_is_undone(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    file = LabelFile(path, "ann", QUESTION)
    for number, label in enumerate(LABELS):
        file.add(item(number), label)
        assert len(path.read_bytes().splitlines()) == number + 1
    with path.open("ab") as half:
        half.write(b'{"id": "id9", "te')
    again = LabelFile(path, "ann", QUESTION)
    assert again.labelled == {"id0", "id1", "id2"}
    assert again.undo() == file.rows[-1]
    again.add(item(3), "yes")
    assert [row["label"] for row in read_labels(path)] == ["yes", "no", "yes"]
    with pytest.raises(ConfigError, match="answers to another question: Is it toxic"):
        LabelFile(path, "ann", "Is it good prose?")
    with pytest.raises(ConfigError, match="contains labels by ann"):
        LabelFile(path, "bob", QUESTION)
    assert [again.undo() is None for _ in range(4)] == [False, False, False, True]
    assert path.read_bytes() == b""


def test_a_file_that_holds_no_labels_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\nof today\n")
    with pytest.raises(SourceError, match="line 1 is not a label"):
        LabelFile(path, "ann", QUESTION)
    assert path.read_text() == "my notes\nof today\n"


@given(st.lists(st.tuples(st.sampled_from(["yes", "no", "skip"]), st.sampled_from(["yes", "no", "skip"])), max_size=30))
def test_kappa_is_sklearns(pairs: list[tuple[str, str]]) -> None:
    from sklearn.metrics import cohen_kappa_score

    sides = [[{"id": str(n), "label": pair[side]} for n, pair in enumerate(pairs)] for side in (0, 1)]
    found = agreement(*sides)
    shared = [pair for pair in pairs if "skip" not in pair]
    assert found.texts == len(shared)
    if len({label for pair in shared for label in pair}) == 2:
        assert found.kappa == pytest.approx(cohen_kappa_score(*zip(*shared, strict=True)))
    else:
        assert found.kappa is None


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        (Reply("Yes."), "yes"),
        (Reply("It is a quotation, so: NO"), "no"),
        (Reply("no, wait: yes"), "yes"),
        (Reply("nothing to know"), "skip"),
        (Reply(""), "skip"),
        (Reply("yes", "unfinished"), "skip"),
    ],
)
def test_the_last_yes_or_no_counts(reply: Reply, label: str) -> None:
    assert label_in(reply) == label


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the ref mine/dedup."""
    folder = tmp_path_factory.mktemp("label")
    documents = write(folder / "in", texts(60))
    with open_session(Session(Store(str(folder / "store")), runtime_of(workers=1), "mine")):
        dedup.materialize(DedupConfig(), [documents])
    return folder / "store"


def command(store: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli", "label", "mine/dedup", f"--store={store}", "--size=6", *more]


def say(store: Path, keys: str, *more: str) -> str:
    """The output of the command, run in this process with these keys piped in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(keys))
        done = gristmill(*command(store, *more)[3:])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_labels_by_hand_are_gone_on_with_compared_and_trained_on(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = say(store, "ynuys\nx", "--labeller=ann")  # x isn't a key, and then the input ends
    assert "6 texts, 0 of them labelled" in said
    assert "Is this toxic? [y/n/s/u/q]" in said
    assert said.count("The number") > 4
    path = tmp_path / "labels-mine-dedup-ann.jsonl"
    assert [row["label"] for row in read_labels(path)] == ["yes", "yes", "skip"]
    said = say(store, "nnyq", "--labeller=ann")
    assert "6 texts, 3 of them labelled" in said
    first = read_labels(path)
    assert [row["label"] for row in first] == ["yes", "yes", "skip", "no", "no", "yes"]
    assert len({row["id"] for row in first}) == 6
    file = LabelledFile(path=str(path), positive=["yes"], negative=["no"])
    assert f"- {{path: {path}, positive: ['yes'], negative: ['no']}}" in said
    assert [example.positive for example in read_labelled(file)] == [True, True, False, False, True]
    said = say(store, "yysnny", "--labeller=bob", f"--against={path}")
    assert f"With {path}: 100.0% of 5 labels are equal, Cohen's kappa 1.00" in said


def test_at_a_terminal_a_key_needs_no_enter(store: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command(store), stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path)
    os.close(theirs)
    shown = b""
    for key in b"yn!q":
        while not shown.endswith(b"[y/n/s/u/q] "):
            assert select.select([ours], [], [], 60)[0], shown
            shown += os.read(ours, 4096)
        os.write(ours, bytes([key]))
        shown = b""
    with suppress(OSError):  # the other end is closed
        while os.read(ours, 4096):
            pass
    assert process.wait(timeout=30) == 0
    os.close(ours)
    assert [row["label"] for row in read_labels(tmp_path / "labels-mine-dedup-me.jsonl")] == ["yes", "no"]


def test_an_endpoint_labels_and_is_paid_once(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABEL_API_KEY", "a-secret-of-tests")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Even? Answer yes or no.\n{text}")
    failing = iter([True])

    def answer(body: dict[str, Any]) -> Said:
        if next(failing, False):
            return Said(status=503)
        number = int(NUMBER.search(body["messages"][0]["content"])[1])  # type: ignore[index]
        return Said("I can't tell." if number % 5 == 0 else f"So: {('Yes', 'No')[number % 2]}")

    with serve(answer) as server:
        asked = (f"--endpoint={server.url}", "--model=judge", f"--prompt={prompt}", "--api-key-env=LABEL_API_KEY")
        said = say(store, "", *asked)
        assert "Texts go to 127.0.0.1" in said
        assert len(server.asked) == 7, "one was answered 503, and repeated"
        assert {header["Authorization"] for header in server.headers} == {"Bearer a-secret-of-tests"}
        path = tmp_path / "labels-mine-dedup-judge.jsonl"
        rows = read_labels(path)
        for row in rows:
            number = int(NUMBER.search(row["text"])[1])  # type: ignore[index]
            assert row["label"] == ("skip" if number % 5 == 0 else ("yes", "no")[number % 2])
            assert row["labeller"] == "judge"
        assert len(rows) == 6
        path.unlink()
        say(store, "", *asked)
        assert len(server.asked) == 7, "the transcript has the answers"
    assert [row["label"] for row in read_labels(path)] == [row["label"] for row in rows]
    transcript = tmp_path / "labels-mine-dedup-judge.transcript.jsonl"
    assert sorted(json.loads(line)["text"] for line in transcript.open()) == sorted(row["answer"] for row in rows)
    assert "a-secret-of-tests" not in path.read_text() + transcript.read_text() + said


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--endpoint=http://127.0.0.1:9/v1",), "--endpoint, --model and --prompt go together"),
        (("--model=judge",), "--endpoint, --model and --prompt go together"),
        (("--by=toxicity_score",), "lacks a column"),
        (("--endpoint=http://127.0.0.1:9/v1", "--model=m", "--prompt=README"), "can't be read"),
    ],
)
def test_what_can_not_work_is_said_and_nothing_is_sent(
    store: Path, tmp_path: Path, more: tuple[str, ...], message: str
) -> None:
    done = gristmill("label", "mine/dedup", f"--store={store}", f"--labels={tmp_path / 'l.jsonl'}", *more)
    assert done.returncode != 0
    assert message in " ".join((done.stdout + done.stderr).replace("│", " ").split())
