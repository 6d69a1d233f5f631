"""A user's own reward: what it gets and returns, what becomes of its failures, and what is refused at once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ConfigError, EmptyOutput, SourceError
from tasks.posttrain.methods.grpo import GRPO, GrpoConfig
from tasks.posttrain.rewards.config import ExactReward, PythonReward, Reward
from tasks.posttrain.rewards.function import FunctionReward
from tasks.posttrain.rewards.outside import check_rows, fingerprints, open_scorer, report_rewards
from tasks.posttrain.rewards.score import Answer, Failed, Scorer
from tasks.posttrain.rewards.watch import check_failures
from tasks.stage.output import Output
from tests.runtimes import runtime_of

CLOSE = """
import math, os, sys, time

print("what a function prints disturbs nothing")

def reward(prompts, answers, rows):
    values = []
    for prompt, answer, row in zip(prompts, answers, rows):
        if answer == "raise":
            raise KeyError("no such thing")
        if answer == "exit":
            sys.exit("enough")
        if answer == "die":
            os._exit(3)
        if answer == "sleep":
            time.sleep(60)
        if answer == "short":
            return []
        if answer == "odd":
            raise ValueError("\\ud800")
        if answer == "fork" and not os.fork():
            sys.exit()
        special = {
            "none": None, "nan": math.nan, "word": "one", "true": True, "long": 10**400, "beyond": 1e300, "fork": 0.25,
        }
        values.append(special.get(answer, 0.5) if answer in special else 1 / (1 + abs(int(answer) - row["level"])))
    return values

class Slowly:
    async def __call__(self, prompts, answers, rows):
        return await slowly(prompts, answers, rows)

of_a_class = Slowly()

async def slowly(prompts, answers, rows):
    import asyncio
    (answer,) = answers
    await asyncio.sleep({"sleep": 60}.get(answer, 0.2))
    if answer == "raise":
        raise KeyError(answer)
    return [len(answer)]

def two(prompts, answers):
    return [1.0] * len(answers)

def broken(prompts, answers, rows):
    raise RuntimeError("it never works")
"""


def answers(*texts: str, level: int = 4) -> list[Answer]:
    return [Answer([{"role": "user", "content": "2+2"}], text, 1, "4", {"level": level}) for text in texts]


def written(folder: Path, source: str = CLOSE) -> str:
    (folder / "rewards.py").write_text(source)
    return str(folder / "rewards.py")


def own(folder: Path, **settings: Any) -> PythonReward:
    return PythonReward.model_validate({"file": written(folder), "seconds": 2, **settings})


def test_each_failure_costs_its_own_answer_only(tmp_path: Path) -> None:
    function = FunctionReward(own(tmp_path, seconds=0.7))
    try:
        assert function(answers("4", "5", "none", "true")) == [1.0, 0.5, None, 1.0]
        found = function(
            answers("4", "raise", "nan", "word", "short", "exit", "die", "sleep", "odd", "long", "beyond", "3")
        )
        assert [one if isinstance(one, float) else one.why for one in found if one is not None] == [
            1.0,
            "KeyError: 'no such thing'",
            "it returned nan",
            "it returned a str, not a number",
            "ValueError: it returned 0 values for 1 answers",
            "SystemExit: enough",
            "its process ended with the exit code 3",
            "it took longer than 0.7 s",
            "ValueError: \\ud800",
            "OverflowError: int too large to convert to float",
            "it returned 1e+300",
            0.5,
        ]
    finally:
        function.close()


def test_a_function_may_fork_and_change_its_lists(tmp_path: Path) -> None:
    source = CLOSE + "\ndef clearing(prompts, answers, rows):\n    return [float(answers.pop(0)) for _ in rows]\n"
    file = written(tmp_path, source)
    forking = FunctionReward(PythonReward(file=file))
    clearing = FunctionReward(PythonReward(file=file, function="clearing"))
    try:
        assert forking(answers("fork", "4")) == [0.25, 1.0]
        assert forking(answers("4", "5")) == [1.0, 0.5], "not what the fork would have replied to the first call"
        assert clearing(answers("4", "5")) == [4.0, 5.0]
    finally:
        forking.close()
        clearing.close()


@pytest.mark.parametrize("name", ["slowly", pytest.param("of_a_class", marks=pytest.mark.soak)])
def test_calls_of_an_async_function_are_gathered_with_a_limit_and_a_time_each(name: str, tmp_path: Path) -> None:
    function = FunctionReward(own(tmp_path, function=name, concurrent=4, seconds=1))
    function(answers("4"))
    started = time.monotonic()
    try:
        found = function(answers(*["four"] * 8, "raise", "sleep"))
    finally:
        function.close()
    assert found == [*[4.0] * 8, Failed("KeyError: 'raise'"), Failed("it took longer than 1 s")]
    assert 0.6 < time.monotonic() - started < 6, "three rounds of four, the last of them for as long as a call may take"


def test_an_answer_without_a_whole_reward_has_none_and_is_counted() -> None:
    values = {"python": [1.0, None, Failed("KeyError: 4"), 0.0]}
    failures: list[Any] = []
    rewards: list[Reward] = [ExactReward(weight=2), PythonReward(file="rewards.py", weight=0.5)]
    scorer = Scorer(
        rewards, others={"python": lambda given: values["python"]}, on_failure=lambda *each: failures.append(each)
    )
    given = answers("4", "4", "4", "5")
    scores = scorer.score(given)
    assert scores.sums == [2.5, 2.0, None, 0.0]
    assert scores.parts == {"exact": [1.0, 1.0, None, 0.0], "python": [1.0, None, None, 0.0]}
    assert scores.means() == {"reward": pytest.approx(4.5 / 3), "exact": pytest.approx(2 / 3), "python": 0.5}
    assert scores.counts() == {"rewards/python/asked": 4, "rewards/python/failed": 1, "rewards/python/none": 1}
    assert failures == [("python", given[2], "KeyError: 4")]
    values["python"] = [Failed("KeyError: 4")] * 4
    with pytest.raises(
        EmptyOutput, match=r"0 of 4 answers of a step have a reward, and 2 must\. python failed first: KeyError: 4"
    ):
        scorer.score(given)


def test_too_large_a_share_of_failures_ends_the_run(tmp_path: Path) -> None:
    rewards = [PythonReward(file="rewards.py", max_failed_share=0.1)]
    history = [{"rewards/python/asked": 50, "rewards/python/failed": 5} for _ in range(3)]
    check_failures([*history, {"eval_rewards/python/asked": 30, "eval_rewards/python/failed": 3}], rewards, "grpo")
    check_failures([{"rewards/python/asked": 8, "rewards/python/failed": 8}], rewards, "grpo")
    with pytest.raises(SourceError, match=r"python failed for 20 of 180 answers, more than 0\.1, its max_failed_share"):
        check_failures([*history, {"eval_rewards/python/asked": 30, "eval_rewards/python/failed": 5}], rewards, "grpo")
    function = FunctionReward(own(tmp_path, function="broken"))
    with pytest.raises(SourceError, match="fails for each of 16 answers: RuntimeError: it never works"):
        function(answers(*"4" * 20))


def rows(**fields: Any) -> list[dict[str, Any]]:
    return [{"prompt": [{"role": "user", "content": "2+2"}], "reference": "4", "fields": json.dumps(fields)}] * 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"function": "two"}, r"can't be called with three arguments: TypeError: too many positional arguments"),
        pytest.param(
            {"function": "other"},
            r"lacks the function other. It has Slowly, broken, of_a_class, reward, slowly, two",
            marks=pytest.mark.soak,
        ),
        ({"function": "broken"}, "fails for each of 2 answers: RuntimeError: it never works"),
        (
            {"fields": ["level", "tests"]},
            r"needs the field tests, which none of 6 rows of instructions has. They have level",
        ),
        ({"file": "nowhere.py"}, "nowhere.py does not exist"),
    ],
    ids=str,
)
def test_mistakes_are_refused_before_anything_is_trained(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = GrpoConfig.model_validate({"rewards": [{"kind": "python", "file": written(tmp_path), **settings}]})

    def check() -> None:
        if "fields" not in settings:
            GRPO.check_here(config, runtime_of(group="posttrain", device="cpu"))
        check_rows(config.rewards, rows(level=4), rows(level=4), "grpo")

    with pytest.raises((ConfigError, SourceError), match=message):
        check()


def test_the_source_is_in_the_key_and_what_runs_is_what_was_digested(tmp_path: Path) -> None:
    config = GrpoConfig.model_validate({"rewards": [{"kind": "python", "file": written(tmp_path)}]})
    first = GRPO.fingerprints(config)
    scorer = open_scorer(config.rewards, None, first, runtime_of(), tmp_path)
    written(tmp_path, CLOSE + "\n")
    assert GRPO.fingerprints(config) != first
    assert fingerprints([ExactReward()]) == {}
    with pytest.raises(ConfigError, match=r"reads another .*rewards\.py than the one in the artifact's key"):
        scorer.score(answers("4"))


def test_the_first_failures_are_named_once_though_a_resumed_run_meets_them_again(tmp_path: Path) -> None:
    out = Output.at(tmp_path, stage="grpo")
    rewards = [own(tmp_path)]
    for _ in range(2):
        scorer = open_scorer(rewards, None, fingerprints(rewards), out.runtime, out.scratch)
        scorer.others = {"python": lambda given: [Failed("KeyError: 4"), Failed("it returned nan"), 1.0, 0.5]}
        scorer.score(answers("raise", "nan", "4", "5"))
    log = [{"step": 1, "python_failed": 2.0, "python_none": 0.0}, {"step": 2, "python_failed": 1.0, "python_none": 4.0}]
    report_rewards(["python_reward", "python_failed", "python_none"], log, {"requests": 3, "tokens_a_pair": 1}, out)
    assert out.counts == {"python_failed": 3, "python_none": 4}
    assert [row["error"] for row in out.facts["tables"]["Rewards that failed"]] == ["KeyError: 4", "it returned nan"]
