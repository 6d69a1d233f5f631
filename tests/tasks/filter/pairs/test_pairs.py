"""Instruction and preference pairs: the same rules and actions as for documents, for personal data and by choice
others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, EmptyOutput
from storage.shards.documents import Verdict, read_ledger
from storage.shards.lines import read_json_lines, write_json_lines
from storage.store import Store
from tasks.filter import FilterConfig, filter_pairs
from tasks.filter.pairs.config import PairRules
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
    return [Artifact.at(folder / "instructions"), Artifact.at(folder / "preferences"), None, None]


def run(folder: Path, inputs: Inputs, **config: Any) -> Output:
    out = Output.at(folder, stage="pairs", runtime=runtime_of(workers=1))
    filter_pairs.function(PiiRules.model_validate(config), *inputs, out)
    return out


def test_labelled_rows_are_looked_through_too_and_keep_their_label(tmp_path: Path) -> None:
    row = {"id": "rated", "source": "users", "prompt": [said("user", f"Is {MAIL} right?")]}
    rated = {**row, "completion": [said("assistant", f"{MAIL} is.")], "label": False}
    write_json_lines(tmp_path / "labelled" / "pairs.jsonl", [rated])
    instructions, preferences, *_ = write(tmp_path, [PLAIN], [])
    out = run(tmp_path, [instructions, preferences, Artifact.at(tmp_path / "labelled"), None])
    (kept,) = pairs_in(out, "labelled")
    assert kept["label"] is False
    assert kept["completion"] == [said("assistant", "<EMAIL_ADDRESS> is.")]
    assert out.counts["labelled"]["in"] == out.counts["labelled_changed"] == 1


def pairs_in(out: Output, role: str) -> list[Any]:
    return list(read_json_lines(out.path / role / "pairs.jsonl"))


def ledger_of(out: Output) -> list[Verdict]:
    return [verdict for path in sorted(out.path.glob("ledger/*")) for verdict in read_ledger(path)]


def test_it_is_replaced_in_every_message_under_the_same_id_and_noted(tmp_path: Path) -> None:
    fields = {"tests": ["assert x"], "level": {"easy": 3}}
    out = run(tmp_path, write(tmp_path, [PLAIN, {**LEAKING, **fields}], [BETTER]))
    replaced = asked(
        "leaking", "Who is <EMAIL_ADDRESS>?", "I don't know.", "Call <PHONE_NUMBER>.", "Not <EMAIL_ADDRESS> either."
    )
    assert pairs_in(out, "instructions") == [PLAIN, {**replaced, **fields}], "fields for rewards stay as they are"
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
    with pytest.raises(EmptyOutput, match=r"kept none of 1 instructions.*filter"):
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
    rules = PairRules(pii=PiiRules())
    decide_pairs(rules, Job(first, {"pii": tmp_path / FILE}), tmp_path)
    with pytest.raises(DamagedArtifact):
        decide_pairs(rules, Job(second, {"pii": tmp_path / FILE}), tmp_path)
    write_json_lines(second, [PLAIN, LEAKING])
    with pytest.raises(DamagedArtifact):
        decide_pairs(rules, Job(second, {"pii": tmp_path / FILE}), tmp_path)


QUESTION = "Which of these birds builds its nest on the ground and hides it under dry grass before the first warm days?"
INSULT = "You are a stupid fucking idiot and everybody hates you."


def with_benchmark(folder: Path, inputs: Inputs) -> Inputs:
    row = {"id": "birds-0", "query": QUESTION, "choices": ["an owl", "a lark"], "gold": 1}
    write_json_lines(folder / "benchmarks" / "birds.jsonl", [row])
    return [*inputs[:3], Artifact.at(folder / "benchmarks")]


def chosen(folder: Path, inputs: Inputs, *pairs: str, **filter_: Any) -> Output:
    """The stage with the groups of `filter.pairs`."""
    config = FilterConfig.model_validate({"pairs": [*pairs], **filter_}).pair_rules
    assert config is not None
    out = Output.at(folder, stage="pairs", runtime=runtime_of(workers=1))
    filter_pairs.function(config, *inputs, out)
    return out


def test_questions_of_benchmarks_are_found_in_pairs_of_every_form(tmp_path: Path) -> None:
    asking = asked("asking", f"Tell me: {QUESTION.upper()}", f"A lark. Write to {MAIL}.")
    repeated = preferred("repeated", "Say something.", "No.", QUESTION)
    write_json_lines(
        tmp_path / "labelled" / "pairs.jsonl",
        [{**preferred("rated", QUESTION, "", ""), "completion": [said("assistant", "An owl.")], "label": False}],
    )
    many = [asked(f"{number}", "Who?", "Nobody.") for number in range(GROUP)]
    instructions, preferences, *_ = write(tmp_path, [*many, PLAIN, asking, LEAKING], [BETTER, repeated])
    inputs = with_benchmark(tmp_path, [instructions, preferences, Artifact.at(tmp_path / "labelled")])
    with pytest.raises(EmptyOutput, match="kept none of 1 labelled"):
        chosen(tmp_path / "all", inputs, "contamination")
    inputs[2] = None
    out = chosen(tmp_path / "out", inputs, "contamination")
    assert [pair["id"] for pair in pairs_in(out, "instructions")][GROUP:] == ["plain", "leaking"]
    assert [pair["id"] for pair in pairs_in(out, "preferences")] == ["better"]
    assert {(one.id, one.reason) for one in ledger_of(out)} == {
        ("asking", "contamination.max_ngrams"),
        ("repeated", "contamination.max_ngrams"),
        ("leaking", "pii"),
        ("better", "pii"),
    }
    bare = chosen(tmp_path / "bare", inputs, "contamination", pii=None)
    assert pairs_in(bare, "instructions")[GROUP:] == [PLAIN, LEAKING]
    assert "Personal data" not in bare.counts["tables"]
    empty = tmp_path / "none"
    empty.mkdir()
    with pytest.raises(ConfigError, match="no benchmark questions"):
        chosen(tmp_path / "without", [*inputs[:3], Artifact.at(empty)], "contamination")


def test_toxic_answers_are_removed_but_not_prompts_and_rejected_answers(tmp_path: Path) -> None:
    rude, provoked = asked("rude", "Who am I?", INSULT), asked("provoked", INSULT, "Let's stay polite.")
    wordless = asked("wordless", "Six times seven?", "42")
    taught = preferred("taught", "Who am I?", "A kind person.", INSULT)
    inputs = write(tmp_path, [PLAIN, rude, provoked, wordless], [taught, preferred("bad", "Who?", INSULT, "Nobody.")])
    out = chosen(tmp_path / "out", inputs, "toxicity")
    assert pairs_in(out, "instructions") == [PLAIN, provoked, wordless]
    assert pairs_in(out, "preferences") == [taught]
    assert {(one.id, one.reason) for one in ledger_of(out)} == {
        ("rude", "toxicity.max_score"),
        ("bad", "toxicity.max_score"),
    }


@pytest.mark.parametrize(
    ("pairs", "filter_", "problem"),
    [
        (["contamination"], {"contamination": None}, "pairs names contamination, which is switched off"),
        (["toxicity"], {"preset": "clean"}, "pairs names toxicity, which is switched off"),
        (["quality"], {}, "'contamination' or 'toxicity'"),
        (
            ["toxicity"],
            {"toxicity": {"measure": {"model": {"kind": "trained", "files": [{"path": "a", "positive": ["b"]}]}}}},
            "trained on documents",
        ),
    ],
)
def test_pairs_pass_only_groups_that_are_on(pairs: list[str], filter_: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        FilterConfig.model_validate({"pairs": pairs, **filter_})


def test_what_pairs_must_pass_changes_nothing_else() -> None:
    usual, more = FilterConfig(), FilterConfig(pairs=["contamination"])
    assert usual.pair_rules == usual.pii
    assert more.texts.model_dump_json() == usual.model_dump_json()
