"""Personal data in instruction and preference pairs: the same rules and actions as for documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.errors import DamagedArtifact, EmptyOutput
from storage.shards.documents import Verdict, read_ledger
from storage.shards.lines import read_json_lines, write_json_lines
from storage.store import Store
from tasks.filter import filter_pairs
from tasks.filter.pairs.decide import Job, decide_pairs
from tasks.filter.pairs.measure import GROUP, measure_pairs
from tasks.filter.pii.config import PiiConfig
from tasks.filter.pii.family import PiiRules
from tasks.filter.side_files import FILE
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of

MAIL = "jane.doe@mail.com"


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


Inputs = list[Artifact | None]


def asked(identity: str, *texts: str) -> dict[str, Any]:
    turns = [said(("user", "assistant")[number % 2], text) for number, text in enumerate(texts)]
    return {"id": identity, "source": "mine", "messages": turns}


def preferred(identity: str, prompt: str, chosen: str, rejected: str) -> dict[str, Any]:
    answers = {"chosen": [said("assistant", chosen)], "rejected": [said("assistant", rejected)]}
    return {"id": identity, "source": "theirs", "prompt": [said("user", prompt)], **answers}


PLAIN = asked("plain", "What is a river?", "Water that flows to the sea.")
LEAKING = asked("leaking", f"Who is {MAIL}?", "I don't know.", "Call +1 212-664-7665.", f"Not {MAIL} either.")
BETTER = preferred("better", "How do I reach her?", "I can't say.", f"Write to {MAIL}.")


def write(folder: Path, instructions: list[dict[str, Any]], preferences: list[dict[str, Any]]) -> Inputs:
    write_json_lines(folder / "instructions" / "pairs.jsonl", instructions)
    write_json_lines(folder / "preferences" / "pairs.jsonl", preferences)
    return [Artifact.at(folder / "instructions"), Artifact.at(folder / "preferences"), None]


def run(folder: Path, inputs: Inputs, **config: Any) -> Output:
    out = Output.at(folder, stage="pairs", runtime=runtime_of(workers=1))
    filter_pairs.function(PiiRules.model_validate(config), *inputs, out)
    return out


def test_labelled_rows_are_looked_through_too_and_keep_their_label(tmp_path: Path) -> None:
    row = {"id": "rated", "source": "users", "prompt": [said("user", f"Is {MAIL} right?")]}
    rated = {**row, "completion": [said("assistant", f"{MAIL} is.")], "label": False}
    write_json_lines(tmp_path / "labelled" / "pairs.jsonl", [rated])
    instructions, preferences, _ = write(tmp_path, [PLAIN], [])
    out = run(tmp_path, [instructions, preferences, Artifact.at(tmp_path / "labelled")])
    (kept,) = pairs_in(out, "labelled")
    assert kept["label"] is False
    assert kept["completion"] == [said("assistant", "<EMAIL_ADDRESS> is.")]
    assert out.counts["labelled"]["in"] == out.counts["labelled_changed"] == 1


def pairs_in(out: Output, role: str) -> list[Any]:
    return list(read_json_lines(out.path / role / "pairs.jsonl"))


def ledger_of(out: Output) -> list[Verdict]:
    return [verdict for path in sorted(out.path.glob("ledger/*")) for verdict in read_ledger(path)]


def test_it_is_replaced_in_every_message_under_the_same_id_and_noted(tmp_path: Path) -> None:
    out = run(tmp_path, write(tmp_path, [PLAIN, LEAKING], [BETTER]))
    assert pairs_in(out, "instructions") == [
        PLAIN,
        asked(
            "leaking", "Who is <EMAIL_ADDRESS>?", "I don't know.", "Call <PHONE_NUMBER>.", "Not <EMAIL_ADDRESS> either."
        ),
    ]
    assert pairs_in(out, "preferences") == [
        preferred("better", "How do I reach her?", "I can't say.", "Write to <EMAIL_ADDRESS>.")
    ]
    told = [(verdict.id, verdict.verdict, verdict.reason, verdict.value, verdict.detail) for verdict in ledger_of(out)]
    assert told == [
        ("leaking", "changed", "pii", 3.0, "2 EMAIL_ADDRESS, 1 PHONE_NUMBER"),
        ("better", "changed", "pii", 1.0, "1 EMAIL_ADDRESS"),
    ]
    assert out.counts["tables"]["Pairs"] == [
        {"pairs": "instructions", "source": "mine", "in": 2, "kept": 2, "changed": 1, "removed": 0},
        {"pairs": "preferences", "source": "theirs", "in": 1, "kept": 1, "changed": 1, "removed": 0},
    ]
    assert out.counts["tables"]["Personal data"] == [
        {"kind": "EMAIL_ADDRESS", "action": "redact", "instructions": 2, "preferences": 1},
        {"kind": "PHONE_NUMBER", "action": "redact", "instructions": 1, "preferences": 0},
    ]


def test_pairs_without_any_keep_their_bytes(tmp_path: Path) -> None:
    inputs = write(tmp_path, [], [])
    assert inputs[0] is not None
    spaced = '{ "id": "a", "source": "b", "messages": [{"content": "Hello", "role": "user"}] }\n'
    (inputs[0].path / "pairs.jsonl").write_text(spaced)
    out = run(tmp_path, inputs)
    assert (out.path / "instructions" / "pairs.jsonl").read_text() == spaced
    assert pairs_in(out, "preferences") == []
    assert ledger_of(out) == []


def test_actions_drop_and_bound_whole_pairs_and_every_pair_is_accounted_for(tmp_path: Path) -> None:
    inputs = write(tmp_path, [PLAIN, LEAKING], [BETTER, preferred("good", "Why?", "So.", "No.")])
    out = run(tmp_path / "drop", inputs, actions={"EMAIL_ADDRESS": "drop"})
    assert [pair["id"] for role in ("instructions", "preferences") for pair in pairs_in(out, role)] == ["plain", "good"]
    for role in ("instructions", "preferences"):
        assert out.counts[role] == {"in": 2, "kept": 1, "removed": {"pii.email_address": 1}, "quarantined": 0}
    assert {(verdict.id, verdict.reason, verdict.threshold) for verdict in ledger_of(out)} == {
        ("leaking", "pii.email_address", 0.4),
        ("better", "pii.email_address", 0.4),
    }
    assert MAIL.encode() not in b"".join(path.read_bytes() for path in out.path.rglob("*") if path.is_file())
    few = run(tmp_path / "few", inputs, max_findings=2)
    assert few.counts["instructions"]["removed"] == {"pii.max_findings": 1}
    assert few.counts["preferences"]["removed"] == {}
    kept = run(tmp_path / "keep", inputs, action="keep")
    assert pairs_in(kept, "instructions") == [PLAIN, LEAKING]
    with pytest.raises(EmptyOutput, match=r"kept none of 1 instructions.*filter\.pii"):
        run(tmp_path / "none", write(tmp_path, [LEAKING], []), actions={"EMAIL_ADDRESS": "drop"})


def test_another_action_measures_nothing_again(tmp_path: Path) -> None:
    inputs = write(tmp_path / "in", [PLAIN, LEAKING], [BETTER])
    store = Store(str(tmp_path / "store"))

    def made(**config: Any) -> set[str]:
        before = set(store.locations())
        filter_pairs.materialize(PiiRules.model_validate(config), inputs)
        return {location.partition("/")[0] for location in set(store.locations()) - before}

    with open_session(Session(store, runtime_of(workers=1))):
        assert made() == {"pii_pairs", "pairs"}
        assert made(action="surrogate") == {"pairs"}
        assert made() == set()


def test_many_pairs_are_measured_and_decided_in_step(tmp_path: Path) -> None:
    many = [
        asked(str(number), "Who?", f"jane.{number}@mail.com" if number % 7 == 0 else "Nobody.")
        for number in range(GROUP + 9)
    ]
    out = run(tmp_path, write(tmp_path, many, []))
    changed = [
        pair["id"] for pair in pairs_in(out, "instructions") if pair["messages"][1]["content"] == "<EMAIL_ADDRESS>"
    ]
    assert changed == [pair["id"] for pair in many if int(pair["id"]) % 7 == 0]


def test_signals_of_other_pairs_are_refused(tmp_path: Path) -> None:
    first, second = (tmp_path / name / "instructions" / "pairs.jsonl" for name in "ab")
    write(tmp_path / "a", [PLAIN], [])
    write(tmp_path / "b", [asked("other", "a", "b")], [])
    measure_pairs(PiiConfig(), first, tmp_path)
    decide_pairs(PiiRules(), Job(first, tmp_path / FILE), tmp_path)
    with pytest.raises(DamagedArtifact):
        decide_pairs(PiiRules(), Job(second, tmp_path / FILE), tmp_path)
    write_json_lines(second, [PLAIN, LEAKING])
    with pytest.raises(DamagedArtifact):
        decide_pairs(PiiRules(), Job(second, tmp_path / FILE), tmp_path)
