"""Votes: what is kept is what `download` reads, and what it would not read is refused in a sentence."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage.shards.lines import read_json_lines
from tasks.download import DownloadConfig, download
from tasks.serve.pages import Feedback
from tasks.stage.output import Output
from tests.runtimes import runtime_of

USER = {"role": "user", "content": "Why is the sky\u2028blue? 🌾"}
SYSTEM = {"role": "system", "content": "Be brief."}
EARLIER = [USER, {"role": "assistant", "content": "Why?"}, {"role": "user", "content": "So?"}]


def vote(number: int = 0, **changes: Any) -> dict[str, Any]:
    made = {
        "request_id": f"r{number}",
        "model": "m",
        "messages": [USER],
        "answer": "Light.",
        "rating": 1,
        "better": None,
    }
    return {**made, **changes}


def test_download_reads_every_vote(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "votes"
    feedback = Feedback(folder)
    feedback.add(vote(1), "ann", "sha256:a")
    feedback.add(vote(2, rating=-1, messages=[SYSTEM, *EARLIER]), "ann", "sha256:a")
    feedback.add(vote(3, rating=-1, better="Because air scatters it."), "bob", "sha256:b")
    feedback.add(vote(4, rating=-1, better="Yes.", messages=[SYSTEM, *EARLIER], answer="\n\nNo.  "), "bob", "sha256:b")
    feedback.add(
        vote(5, messages=[{"role": "user", "content": [{"type": "text", "text": "In parts"}]}]), "bob", "sha256:b"
    )
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {
        "labelled.jsonl": 0o600,
        "preferences.jsonl": 0o600,
    }
    (tmp_path / "text.txt").write_text("A document, which download does not go without.")
    sources = [
        {"kind": "files", "name": "text", "paths": [str(tmp_path / "text.txt")]},
        *(
            {"kind": "files", "name": role, "role": role, "paths": [str(folder / f"{role}.jsonl")]}
            for role in ("labelled", "preferences")
        ),
    ]
    config = {"sources": sources, "benchmarks": ["piqa"], "benchmark_items": 1, "max_quarantined_share": 0}
    out = Output.at(tmp_path / "download", stage="download", runtime=runtime_of())
    download.function(DownloadConfig.model_validate(config), out)
    read = {
        role: {row["id"]: row for path in (out.path / role).iterdir() for row in read_json_lines(path)}
        for role in ("labelled", "preferences")
    }
    for role, fields in (
        ("labelled", ("prompt", "completion", "label")),
        ("preferences", ("prompt", "chosen", "rejected")),
    ):
        kept = list(read_json_lines(folder / f"{role}.jsonl"))
        assert [{name: read[role][row["id"]][name] for name in fields} for row in kept] == [
            {name: row[name] for name in fields} for row in kept
        ]
        assert len(read[role]) == len(kept)
    assert [row["label"] for row in read_json_lines(folder / "labelled.jsonl")] == [True, False, True]
    first = next(read_json_lines(folder / "labelled.jsonl"))
    assert (first["key"], first["release"], first["request_id"], first["model"]) == ("ann", "sha256:a", "r1", "m")


@pytest.mark.parametrize(
    "odd",
    [
        None,
        [],
        "vote",
        {},
        {"request_id": "a"},
        vote(extra=1),
        vote(request_id=""),
        vote(request_id="a\nb"),
        vote(request_id="a" * 201),
        vote(model=None),
        vote(model="\ud800"),
        vote(rating=0),
        vote(rating=True),
        vote(rating="1"),
        vote(rating=[1]),
        vote(rating=float("nan")),
        vote(answer=None),
        vote(answer=""),
        vote(answer=" \n"),
        vote(answer="\ud800"),
        vote(answer="\0"),
        vote(better="x"),
        vote(rating=-1, better=["x"]),
        vote(rating=-1, better="Light."),
        vote(rating=-1, better=""),
        vote(messages=[]),
        vote(messages={}),
        vote(messages="text"),
        vote(messages=[None]),
        vote(messages=[SYSTEM]),
        vote(messages=[USER, USER]),
        vote(messages=[USER, SYSTEM]),
        vote(messages=[{"role": "assistant", "content": "x"}]),
        vote(messages=[{"role": "user"}]),
        vote(messages=[USER] * 1001),
        vote(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a"}}]}]),
        vote(messages=[{"role": "user", "content": {"a": [[]]}}]),
        vote(answer="x" * 1_000_001),
        vote(messages=[{"role": "root", "content": "x"}]),
    ],
)
def test_what_is_no_vote_is_refused_in_one_sentence_and_leaves_nothing(odd: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]{10,400}\.\Z") as refused:
        Feedback(tmp_path).add(odd, "ann", "sha256:a")
    assert "blue" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_key_votes_so_often_a_minute_and_once_on_an_answer(tmp_path: Path) -> None:
    now = [0.0]
    feedback = Feedback(tmp_path, per_minute=3, clock=lambda: now[0])
    feedback.add(vote(1), "ann", "")
    with pytest.raises(ValueError, match="has your vote already"):
        feedback.add(vote(1, rating=-1), "ann", "")
    now[0] = 20
    feedback.add(vote(2), "ann", "")
    with pytest.raises(ValueError, match=r"More than 3 votes a minute are refused: try again in 40 s\."):
        feedback.add(vote(3), "ann", "")
    feedback.add(vote(1), "bob", "")
    now[0] = 60
    feedback.add(vote(3), "ann", "")
    assert [row["key"] for row in read_json_lines(tmp_path / "labelled.jsonl")] == ["ann", "ann", "bob", "ann"]


def test_what_is_remembered_of_keys_and_votes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.serve.pages.feedback.REMEMBERED", 5)
    now = [0.0]
    feedback = Feedback(tmp_path, clock=lambda: now[0])
    for number in range(100):
        now[0] += 20
        feedback.add(vote(number), f"key {number}", "")
    assert len(feedback._times) <= 5
    assert len(feedback._given) == 5


def test_no_half_line_stays_after_a_kill_or_on_a_full_disk(tmp_path: Path) -> None:
    feedback = Feedback(tmp_path)
    feedback.add(vote(1), "ann", "")
    file = tmp_path / "labelled.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:50])
    feedback.add(vote(2), "ann", "")
    rows = list(read_json_lines(file))
    assert [row["request_id"] for row in rows] == ["r1", "r2"]
    process = os.fork()
    if process == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 50, resource.RLIM_INFINITY))
        try:
            feedback.add(vote(3), "ann", "")
        except OSError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7
    assert list(read_json_lines(file)) == rows
    with pytest.raises(ValueError, match="their file is full"):
        Feedback(tmp_path, most_bytes=file.stat().st_size + 50).add(vote(4), "ann", "")
    assert list(read_json_lines(file)) == rows


ADDS = """
import sys
from pathlib import Path
from tasks.serve.pages import Feedback
from tests.tasks.serve.pages.test_feedback import vote
feedback, key = Feedback(Path(sys.argv[1]), per_minute=1000), sys.argv[2]
for number in range(50):
    feedback.add(vote(number, answer=key * 3000), key, "")
"""


def test_lines_of_several_processes_stay_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ADDS, str(tmp_path)]
    processes = [subprocess.Popen([*command, key]) for key in ("ann", "bob", "cy")]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    rows = [json.loads(line) for line in (tmp_path / "labelled.jsonl").read_bytes().splitlines()]
    assert len(rows) == 150
    assert all(row["completion"][0]["content"] == row["key"] * 3000 for row in rows)
