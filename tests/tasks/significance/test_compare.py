"""Comparing evaluations: matches, refusals, messages, and damaged or hostile folders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binom

from flows.commands.compare import text_of
from storage.errors import ConfigError, DamagedArtifact, StoreError
from storage.store import Store
from tasks.significance.answered import Answered
from tasks.significance.compare import EQUAL, Comparison, One, as_json, chain_pairs, compare, pair_up
from tasks.significance.gate_config import GateConfig
from tasks.significance.gates import judge_gates
from tests.flows.commands.test_cli import gristmill, publish
from tests.tasks.significance.evaluations import Scores, right, write_evaluation


def read(folder: Path, models: Mapping[str, Mapping[str, Scores]], name: str = "run", **about: Any) -> Answered:
    return Answered.read(write_evaluation(folder / name, models, **about), name)


def names(pairs: Sequence[tuple[One, One]]) -> list[tuple[str, str]]:
    return [(one.model, two.model) for one, two in pairs]


def two(folder: Path, first: Scores, second: Scores, **about: Any) -> Comparison:
    return compare(chain_pairs(read(folder, {"base": {"task": first}, "sft": {"task": second}}, **about)))


def test_a_real_difference_is_told_from_none(tmp_path: Path) -> None:
    run = read(
        tmp_path, {"base": {"easy": right(120), "same": right(80)}, "sft": {"easy": right(150), "same": right(81)}}
    )
    easy, same = compare(chain_pairs(run)).rows
    assert (easy.verdict, same.verdict) == ("B better", EQUAL)
    assert easy.found.difference == pytest.approx(0.15)
    assert easy.found.p == pytest.approx(2 * 0.5**30)
    assert easy.p == pytest.approx(4 * 0.5**30)  # the smaller of two
    assert same.detectable is not None
    assert binom.sf(6, 200, same.detectable) == pytest.approx(0.8)  # seven, in one direction: 2 / 2 ** 7 < 0.02


def test_less_can_be_better(tmp_path: Path) -> None:
    (row,) = two(
        tmp_path, [2.0 + n % 3 for n in range(60)], [1.5 + n % 3 for n in range(60)], metric="bits", better=False
    ).rows
    assert row.verdict == "B better"
    assert "bits, less is better" in text_of(Comparison([row], [], [(row.first, row.second)]))


def test_questions_that_only_one_was_asked_are_counted_and_said(tmp_path: Path) -> None:
    found = two(tmp_path, right(50, 100), right(50, 80))
    (row,) = found.rows
    assert (row.found.items, row.only_first, row.only_second) == (80, 20, 0)
    assert row.found.first == 50 / 80  # of the questions of both
    assert "80 (not 20 only A has)" in text_of(found)


def test_a_task_is_not_compared_with_another_of_its_name(tmp_path: Path) -> None:
    one = read(tmp_path, {"base": {"task": right(9, 20), "mine": right(9, 20)}}, "one", data_digest="a" * 64)
    other = read(tmp_path, {"base": {"task": right(9, 20)}}, "two", data_digest="b" * 64)
    found = compare(pair_up(one, None, other, None))
    assert not found.rows
    assert [(left.task, left.why) for left in found.left] == [
        ("mine", "two:base was not asked this"),
        ("task", "it is another task by its data: aaaaaaaaaaaa and bbbbbbbbbbbb"),
    ]
    assert "No task could be compared." in text_of(found)
    assert json.loads(json.dumps(as_json(found)))["not_compared"][1]["task"] == "task"


def test_a_task_asked_in_another_way_is_not_compared(tmp_path: Path) -> None:
    asked = {"shots": [0], "chat": False, "generation": {}}
    one = read(tmp_path, {"base": {"task": right(9, 20)}}, "one", asked=asked)
    other = read(tmp_path, {"base": {"task": right(9, 20)}}, "two", asked={**asked, "shots": [5], "chat": True})
    earlier = read(tmp_path, {"base": {"task": right(9, 20)}}, "three")
    (left,) = compare(pair_up(one, None, other, None)).left
    assert left.why == "it was asked in another way: chat false and true; shots [0] and [5]"
    assert compare(pair_up(one, None, earlier, None)).rows


def write_language(of: Answered, sources: dict[str, float], *, is_sample: bool = False) -> None:
    told = {"is_sample": is_sample, "by_source": [{"name": name, "bytes": size} for name, size in sources.items()]}
    path = of.folder / "language" / "base" / "language.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"held_out": told}))


def test_bits_per_byte_of_other_texts_are_not_compared(tmp_path: Path) -> None:
    one, other = (read(tmp_path, {"base": {"task": right(9, 20)}}, name) for name in ("one", "two"))
    gate = GateConfig(task="bits_per_byte", no_worse_than="tiny/evaluate@1")
    write_language(one, {"speeches": 9000})

    def told(sources: dict[str, float], *, is_sample: bool = False) -> tuple[bool, bool]:
        write_language(other, sources, is_sample=is_sample)
        (result,) = judge_gates([gate], other, {"tiny/evaluate@1": one})
        return "different texts" in text_of(compare(pair_up(one, None, other, None))), result.passed

    assert told({"speeches": 9010}) == (False, True)  # another tokenizer leaves another end out
    assert told({"speeches": 4000}, is_sample=True) == (False, True)
    assert told({"speeches": 4000}) == (True, False)
    assert told({"gsm8k": 9000}, is_sample=True) == (True, False)
    (other.folder / "language" / "base" / "language.json").write_text("{}")
    with pytest.raises(DamagedArtifact, match=r"language\.json of base in two can't be read"):
        judge_gates([gate], other, {"tiny/evaluate@1": one})


def test_no_common_question_and_no_kept_answers_are_said(tmp_path: Path) -> None:
    run = read(tmp_path, {"base": {"task": right(3, 5)}, "sft": {"task": right(3, 5)}, "dpo": {"task": right(3, 5)}})
    path = tmp_path / "run/items/sft/task.jsonl"
    path.write_text(path.read_text().replace('"q', '"r'))
    (tmp_path / "run/items/dpo/task.jsonl").unlink()
    found = compare(chain_pairs(run))
    assert [left.why for left in found.left] == [
        "they have no question in common: 5 and 5 others",
        "run:dpo has no answers to single questions by acc",
    ]


def test_clusters_are_minded(tmp_path: Path) -> None:
    """Twenty questions gained, all of one text: that is one thing learnt."""
    texts = [f"text {n // 20}" for n in range(200)]
    (alone,) = two(tmp_path / "a", right(100), right(120)).rows
    (grouped,) = two(tmp_path / "b", right(100), right(120), clusters=texts).rows
    assert (alone.verdict, grouped.verdict) == ("B better", EQUAL)
    assert grouped.found.test == "sign flips of clusters, exact"
    assert grouped.found.clusters == 10


def test_models_are_paired_along_the_chain_and_by_name(tmp_path: Path) -> None:
    tasks = {"task": right(3, 5)}
    run = read(tmp_path, dict.fromkeys(("base", "sft", "dpo", "org/model:Q4"), tasks))
    other = read(tmp_path, {"sft": tasks, "grpo": tasks}, "other")
    assert names(chain_pairs(run)) == [("base", "sft"), ("sft", "dpo"), ("org/model:Q4", "dpo")]
    assert names(chain_pairs(run, "base")) == [("sft", "base"), ("dpo", "base"), ("org/model:Q4", "base")]
    assert names(pair_up(run, None, other, None)) == [("sft", "sft")]
    assert names(pair_up(run, "dpo", other, "grpo")) == [("dpo", "grpo")]
    assert names(pair_up(run, "sft", other, None)) == [("sft", "sft")]
    with pytest.raises(ConfigError, match=r"No model of run \(dpo\) is one of other"):
        pair_up(run, "dpo", other, None)
    with pytest.raises(ConfigError, match="other has no model base"):
        pair_up(run, None, other, "base")
    with pytest.raises(ConfigError, match="No model was asked nothing"):
        compare(chain_pairs(run), ["nothing"])


LINE = {"id": "q0", "cluster": None, "scores": {"acc": 1.0}}


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"",
        b"\n",
        b"[" * 100_000,
        b'{"id": "q0"}',
        json.dumps({**LINE, "scores": {"acc": True}}).encode(),
        json.dumps({**LINE, "id": 3}).encode(),
        json.dumps({**LINE, "scores": {"acc": float("nan")}}).encode(),
        json.dumps({**LINE, "scores": {"acc": 1e300}}).encode(),
        json.dumps({**LINE, "scores": {"acc": 10**400}}).encode(),
        b"\n".join([json.dumps(LINE).encode()] * 2),
    ],
)
def test_damaged_answers_are_an_error_that_names_them(text: bytes, tmp_path: Path) -> None:
    run = read(tmp_path, {"base": {"task": right(1, 2)}, "sft": {"task": right(1, 2)}})
    (tmp_path / "run/items/sft/task.jsonl").write_bytes(text)
    with pytest.raises(DamagedArtifact, match="the answers of sft to task in run"):
        compare(chain_pairs(run))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b'{"models": []}',
        b'{"models": {"base": {"tasks": {"t": {"value": 1}}}}}',
        b'{"models": {"base": {"tasks": {"t": {"metric": "acc", "value": NaN}}}}}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_damaged_scores_are_an_error(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "items").mkdir()
    (tmp_path / "scores.json").write_bytes(text)
    with pytest.raises(DamagedArtifact, match=r"scores.json of run is damaged"):
        Answered.read(tmp_path, "run")


def test_an_evaluation_of_an_earlier_version_says_so(tmp_path: Path) -> None:
    old = {"models": {"base": {"bits_per_byte": 1.5, "tasks": {"arc_easy": {"accuracy": 0.3, "items": 100}}}}}
    (tmp_path / "scores.json").write_text(json.dumps(old))
    with pytest.raises(StoreError, match="earlier version"):
        Answered.read(tmp_path, "run")


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "a/../../b", "a\0b", "x" * 5000, "\ud800"])
def test_names_do_not_lead_out_of_the_folder(name: str, tmp_path: Path) -> None:
    models = {model: {"bits_per_byte": 1, "tasks": {name: {"metric": "acc", "value": 1}}} for model in ("base", "sft")}
    (tmp_path / "scores.json").write_text(json.dumps({"models": models}))
    with pytest.raises(StoreError):
        compare(chain_pairs(Answered.read(tmp_path, "run")))


def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    store, folder = Store(str(tmp_path / "store")), tmp_path / "made"
    write_evaluation(folder, {"base": {"easy": right(120)}, "sft": {"easy": right(150)}})
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    publish(store, "evaluate", files)
    told = gristmill("compare", "tiny/evaluate", f"--store={store.root}")
    assert told.returncode == 0, told.stderr
    # Bonett and Price: 30 of 200 gained, none lost; 31/202 - 1/202 ± 1.96 · √((32/202 - (30/202)²) / 202)
    assert "A = tiny/evaluate:base, B = tiny/evaluate:sft" in told.stdout
    assert "| +0.15 (+0.0976 to +0.199) |" in told.stdout
    assert "1 of 1 differences are real: easy (B better)." in told.stdout
    asked = gristmill("compare", "tiny/evaluate@1:sft", "tiny/evaluate:base", "--json", f"--store={store.root}")
    (row,) = json.loads(asked.stdout)["rows"]
    assert (row["verdict"], row["difference"], row["questions"]) == ("A better", -0.15, 200)
    wrong = gristmill("compare", "tiny/evaluate:dpo", f"--store={store.root}")
    assert wrong.returncode == 1
    assert "has no model dpo" in wrong.stderr
    assert "base, sft" in wrong.stderr
