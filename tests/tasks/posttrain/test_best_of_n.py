"""Rejection sampling: the best answers by their rewards, from the model, a teacher or an endpoint."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from models.kernels.virtual_tokens import FIELD
from profiles.load import load
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, EmptyOutput
from storage.shards.documents import read_ledger
from storage.shards.lines import read_json_lines
from tasks.base import BaseConfig
from tasks.posttrain.best_of_n import BestOfNConfig, best_of_n
from tasks.posttrain.best_of_n.answerer import Model
from tasks.posttrain.best_of_n.choose import best_of, decision
from tasks.posttrain.best_of_n.stage import means_of_best, shown, sources
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.stage.output import Output
from tests.tasks.endpoint.completions import Said, serve
from tests.tasks.interrupt import interrupt
from tests.tasks.posttrain.sums import make_sums
from tests.tasks.posttrain.uneven import output
from tests.tasks.tiny_model import RUNTIME, make_model


def config_of(**settings: Any) -> BestOfNConfig:
    return BestOfNConfig.model_validate({"n": 4, "max_new_tokens": 4, "max_dropped_share": 1, **settings})


def said(*rewards: float | None, faults: str = "") -> list[dict[str, Any]]:
    """Answers a, b, … with these rewards; a letter in `faults` is of one that was cut."""
    return [
        {"text": letter, "reward": reward, "fault": "unfinished" if letter in faults else ""}
        for letter, reward in zip("abcdef", rewards, strict=False)
    ]


@pytest.mark.parametrize(
    ("answers", "settings", "chosen"),
    [
        (said(0, 1, 1, 0), {}, ("b", "a", True, True, "")),
        (said(1, 1, 1), {}, ("a", "a", True, False, "")),
        (said(0.25, 0.5), {}, ("b", "a", False, False, "below_threshold")),
        (said(0.25, 0.8), {}, ("b", "a", False, True, "")),
        (said(0.25, 0.5), {"threshold": None}, ("b", "a", True, False, "")),
        (said(0.25, 0.5), {"gap": 0.25}, ("b", "a", False, True, "")),
        (said(0.2, 0.7, 0.7 + 0.2 + 0.1), {}, ("c", "a", True, True, "")),
        (said(0.2, 0.7), {}, ("b", "a", False, True, "")),
        (said(1, 0.5, 0, faults="ac"), {"threshold": 0.5}, ("b", "b", True, False, "")),
        (said(None, 1, None), {}, ("b", "b", True, False, "")),
        (said(None, None), {}, ("", "", False, False, "no_reward")),
        (said(1, 1, faults="ab"), {}, ("", "", False, False, "unfinished")),
    ],
)
def test_the_best_and_the_worst_are_chosen_of_whole_answers(
    answers: list[dict[str, Any]], settings: dict[str, Any], chosen: tuple[str, str, bool, bool, str]
) -> None:
    found = decision(config_of(**settings), answers)
    best, worst = (answers[found[which]]["text"] if which in found else "" for which in ("best", "worst"))
    assert (best, worst, found["instruction"], found["pair"], found["dropped"]) == chosen


def test_the_expected_best_is_the_mean_over_all_draws() -> None:
    rewards = [0.5, 2.0, -1.0, 0.0, 0.7]
    for n in range(1, 6):
        draws = [max(draw) for draw in combinations(rewards, n)]
        assert best_of(rewards, n) == pytest.approx(sum(draws) / len(draws))


def test_answers_that_are_never_chosen_are_not_in_the_reward_of_the_best() -> None:
    groups = (said(0, 1, 3, 9, faults="d"), said(2, None, 5, faults="c"), said(7, faults="a"))
    assert means_of_best(4, [{"answers": group} for group in groups]) == {
        1: pytest.approx((4 / 3 + 2) / 2),
        2: pytest.approx((7 / 3 + 2) / 2),
        4: (3 + 2) / 2,
    }
    assert means_of_best(2, [{"answers": said(1, 1, faults="ab")}]) == {}


@pytest.mark.parametrize(
    ("answers", "settings", "expected"),
    [
        (said(0, 1), {}, ("b", "a", "1 and 0")),
        (said(1, 0, faults="b"), {}, ("a", "", "1")),
        (said(None), {"n": 1, "rewards": [], "endpoint": {"url": "http://a", "model": "b"}}, ("a", "", "")),
    ],
)
def test_the_only_answer_left_is_not_shown_as_the_worst(
    answers: list[dict[str, Any]], settings: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    one = {"prompt": [{"content": "1+1"}], "answers": answers, **decision(config_of(**settings), answers)}
    assert shown(one) == {"prompt": "1+1", **dict(zip(("best", "worst", "rewards"), expected, strict=True))}


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_sums(tmp_path_factory.mktemp("sums"), below=4)


@pytest.fixture(scope="module")
def model(sums: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A model that has learned to end its answers, and little about sums."""
    folder = tmp_path_factory.mktemp("tuned")
    out = output(folder / "sft", "sft")
    config = SftConfig(epochs=8, learning_rate=3e-3, validation_share=0)
    sft.function(config, Artifact.at(make_model(folder / "model")), sums, out)
    return Artifact.at(out.path / "model")


def made(config: BestOfNConfig, folder: Path, model: Artifact | None, rows: Artifact) -> Output:
    out = Output.at(folder, stage="best_of_n", runtime=RUNTIME)
    best_of_n.function(config, model, rows, None, out)
    return out


def rows_of(out: Output, name: str) -> list[dict[str, Any]]:
    return list(read_json_lines(out.path / name))


def tries(body: dict[str, Any]) -> Said:
    """A sum that is right or a bit off, by the seed. Some are cut, and one question gets no right answer."""
    asked, seed = body["messages"][0]["content"], body["seed"]
    number = sum(int(digit) for digit in asked if digit.isdigit()) + (asked == "3+3" or seed % 3)
    return Said(str(number), "length" if seed % 5 == 0 else "stop")


def test_the_best_answers_become_instructions_and_pairs(sums: Artifact, tmp_path: Path) -> None:
    rewards = [{"kind": "exact"}, {"kind": "length", "target": 10, "weight": 0.1}]
    with serve(tries) as server:
        endpoint = {"url": server.url, "model": "teacher"}
        out = made(config_of(rewards=rewards, endpoint=endpoint), tmp_path / "out", None, sums)
        again = Output.at(tmp_path / "again", stage="best_of_n", runtime=RUNTIME)
        asked = len(server.asked)
    right = {row["id"]: row["messages"][1]["content"] for path in sums.files("*") for row in read_json_lines(path)}
    transcripts, chosen = rows_of(out, "transcripts.jsonl"), rows_of(out, "instructions/best.jsonl")
    assert asked == 4 * len(transcripts) == len(rows_of(out, "answers/00000.jsonl"))
    by_prompt = {one["prompt"][0]["content"]: one for one in transcripts}
    for one in transcripts:
        for answer in one["answers"]:
            exact = float(answer["text"] == right[one["id"]])
            assert answer["rewards"]["exact"] == exact
            assert answer["reward"] == pytest.approx(exact + 0.1 * answer["rewards"]["length"])
    assert [row["messages"][1]["content"] for row in chosen] == [right[row["messages"][0]["content"]] for row in chosen]
    pairs = rows_of(out, "preferences/pairs.jsonl")
    for pair in pairs:
        one = by_prompt[pair["prompt"][0]["content"]]
        texts = [one["answers"][one[which]]["text"] for which in ("best", "worst")]
        assert [pair[which][0]["content"] for which in ("chosen", "rejected")] == texts
        assert texts[0] == right[one["id"]] != texts[1]
    assert (len(chosen), len(pairs)) == (out.counts["instructions"], out.counts["pairs"])
    assert not {row["id"] for row in (*chosen, *pairs)} & set(right), "ids are new, so that some are held out"
    answers = [answer for one in transcripts for answer in one["answers"]]
    assert out.counts["never_chosen"] == sum(bool(answer["fault"]) for answer in answers) > 0
    best = [one["answers"][one["best"]]["reward"] for one in transcripts if "best" in one]
    assert out.counts["best_reward"] == pytest.approx(sum(best) / len(best), abs=1e-6)
    assert [row["answers"] for row in out.counts["tables"]["Reward of the best"]] == [1, 2, 4]
    ledger = list(read_ledger(out.path / "ledger" / "00000.parquet"))
    assert [verdict.id for verdict in ledger] == [one["id"] for one in transcripts if one["dropped"]]
    assert ("3+3", "below_threshold", 1.0) in [(one.id, one.reason, one.threshold) for one in ledger]
    conversations = out.counts["conversations"]
    assert conversations["kept"] == len(transcripts) - len(ledger)
    assert conversations["in"] == 64
    # Answers that another artifact has are not asked for again, whatever is chosen of them
    (again.scratch / "answers.jsonl").parent.mkdir(parents=True, exist_ok=True)
    (again.scratch / "answers.jsonl").write_bytes((out.path / "answers" / "00000.jsonl").read_bytes())
    elsewhere = {"url": "http://127.0.0.1:9/v1", "model": "teacher"}
    best_of_n.function(config_of(endpoint=elsewhere, threshold=None), None, sums, None, again)
    assert len(rows_of(again, "instructions/best.jsonl")) > len(chosen)


def test_without_rewards_a_teacher_is_imitated(sums: Artifact, tmp_path: Path) -> None:
    with serve(tries) as server:
        endpoint = {"url": server.url, "model": "teacher"}
        out = made(config_of(rewards=[], n=1, endpoint=endpoint, prompts=20), tmp_path / "out", None, sums)
    chosen = rows_of(out, "instructions/best.jsonl")
    whole = [one for one in rows_of(out, "transcripts.jsonl") if not one["answers"][0]["fault"]]
    assert [row["messages"] for row in chosen] == [
        [*one["prompt"], {"role": "assistant", "content": one["answers"][0]["text"]}] for one in whole
    ]
    assert rows_of(out, "preferences/pairs.jsonl") == []
    assert out.counts["dropped"] == {"unfinished": 20 - len(chosen)}


def test_a_model_that_never_ends_gives_nothing(sums: Artifact, tmp_path: Path) -> None:
    untrained = Artifact.at(make_model(tmp_path / "model"))
    with pytest.raises(EmptyOutput, match=r"16 of 16 prompts gave nothing \(16 unfinished\)"):
        made(config_of(prompts=16, n=2), tmp_path / "out", untrained, sums)


def test_by_llama_cpp_each_answer_has_its_own_numbers_and_greedy_ones_are_those_of_transformers(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    rows = [{"id": str(a), "prompt": [{"role": "user", "content": f"{a}+1"}]} for a in range(20)]

    def answers(number: int, **settings: Any) -> list[list[Any]]:
        return Model(folder, config_of(**settings), RUNTIME).answers(rows[:number])

    by = {"rollout": {"engine": "llama.cpp"}, "temperature": 0.7}
    whole = answers(20, **by)
    assert [group[:2] for group in whole[:5]] == answers(5, n=2, **by), "beside other answers it is the same"
    assert len({one.text for group in whole for one in group}) > 20
    cold = {"temperature": 1e-4, "n": 1}
    assert answers(20, **{**by, **cold}) == answers(20, **cold)


def test_an_engine_is_refused_where_it_would_not_answer(sums: Artifact, tmp_path: Path) -> None:
    config = config_of(rollout={"engine": "llama.cpp"})
    folder = make_model(tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, FIELD: 4}))
    with pytest.raises(ConfigError, match=r"rollout\.engine is llama\.cpp, which can't read virtual tokens"):
        made(config, tmp_path / "out", Artifact.at(folder), sums)
    assert "rollout" not in config_of().model_dump()


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["transformers", "continuous", "llama.cpp"])
def test_killed_it_goes_on_and_ends_with_the_same_bytes(
    engine: str, model: Artifact, sums: Artifact, tmp_path: Path
) -> None:
    config = config_of(rollout={"engine": engine})
    whole = made(config, tmp_path / "whole", model, sums)
    assert whole.counts["best_reward"] > whole.counts["mean_reward"] > 0
    killed = Output.at(tmp_path / "killed", stage="best_of_n", runtime=RUNTIME)
    interrupt(best_of_n, config, (model, sums, None), killed, at=16)
    assert list((killed.scratch / "transcripts").iterdir())
    best_of_n.function(config, model, sums, None, killed)
    assert tree_digest(list_files(killed.path)) == tree_digest(list_files(whole.path))


@pytest.mark.soak
def test_a_teacher_outside_the_chain_answers_in_its_own_words(model: Artifact, sums: Artifact, tmp_path: Path) -> None:
    mine = made(config_of(prompts=8), tmp_path / "mine", model, sums)
    config = config_of(prompts=8).model_copy(update={"teacher": BaseConfig(folder=str(model.path))})
    theirs = made(config, tmp_path / "theirs", None, sums)
    assert rows_of(mine, "transcripts.jsonl") == rows_of(theirs, "transcripts.jsonl")
    assert "teacher base/model.safetensors" in sources(config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rewards": [], "n": 4}, "no reward says which of the answers is best"),
        ({"rewards": [], "n": 1}, "would learn its own samples"),
        ({"rewards": [{"kind": "environment"}]}, "only grpo has environments: leave the reward environment out"),
        ({"rollout": {"engine": "vllm"}}, "so it is for grpo only"),
        ({"rollout": {"engine": "llama.cpp"}, "endpoint": {"url": "http://a", "model": "b"}}, "an endpoint answers"),
        ({"teacher": {"folder": "a"}, "endpoint": {"url": "http://a", "model": "b"}}, "leave one out"),
    ],
)
def test_what_can_not_be_chosen_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_of(**settings)


def test_links_after_it_learn_from_it_and_a_reward_model_comes_before() -> None:
    base, best = "base={folder: a}", "best_of_n={}"
    chained = load("tiny", [best, "chain=[sft, best_of_n, dpo]"])
    assert (chained.learns_from("dpo"), chained.learns_from("sft")) == ("best_of_n", "downloaded")
    based = ["pretrain=null", base, best, "chain=[best_of_n, sft, dpo]"]
    assert load("tiny", based).learns_from("sft") == "best_of_n"
    assert load("tiny", [*based, "sft.learns_from=both"]).makers_before("sft") == ["best_of_n"]
    for wrong, message in (
        (["sft.learns_from=best_of_n"], "sft.learns_from is best_of_n, but no best_of_n comes before it"),
        (["best_of_n={rewards: [{kind: model}]}"], "best_of_n learns from a reward model, but no reward comes before"),
        (
            ["best_of_n={n: 1}"],
            "best_of_n.n is 1, so it makes no pairs for dpo to learn from: raise it, or set dpo.learns_from to d",
        ),
        (["best_of_n={rewards: [{kind: exact, weight: 0.4}]}"], "gap is 0.5, but its rewards differ by 0.4 at most"),
        (
            [*based, "best_of_n={threshold: 2, rewards: [{kind: exact}, {kind: length, target: 8, weight: 0.9}]}"],
            "best_of_n.threshold is 2, but its rewards sum to 1.9 at most: lower it, or sft has nothing to learn from",
        ),
        (
            [best, "sft.validation_share=0.2"],
            "of which best_of_n would ask some: set best_of_n.validation_share to 0.2",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            load("tiny", wrong)
