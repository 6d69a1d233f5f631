"""The harness's own code tasks, in the sandbox and without the hub."""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ConfigError
from tasks.harness.code import sandboxed_code_eval
from tasks.sandbox import Program, Sandbox, SandboxConfig
from tests.conftest import DATA

evaluate = importlib.import_module("evaluate")
CONFIG = SandboxConfig(seconds=10)
HUMANEVAL = DATA / "eval" / "humaneval" / "HumanEval.jsonl.gz"
MBPP = DATA / "eval" / "mbpp" / "mbpp.jsonl"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(SandboxConfig()) as opened:
        yield opened


def test_it_returns_what_the_original_does() -> None:
    with sandboxed_code_eval(CONFIG):
        metric = evaluate.load("code_eval")
        programs = [
            ["def add(a, b): return a*b", "def add(a, b): return a+b"],
            ["def add(a, b): raise OSError(2, 'x')"] * 2,
        ]
        scores, results = metric.compute(references=["assert add(2,3)==5"] * 2, predictions=programs, k=[1, 2, 10])
    assert scores == {"pass@1": 0.25, "pass@2": 0.5}
    assert results == {
        0: [
            (0, {"task_id": 0, "passed": False, "result": "failed: ", "completion_id": 0}),
            (1, {"task_id": 0, "passed": True, "result": "passed", "completion_id": 1}),
        ],
        1: [
            (i, {"task_id": 1, "passed": False, "result": "failed: [Errno 2] x", "completion_id": i}) for i in range(2)
        ],
    }


def test_other_metrics_and_other_times_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(evaluate, "load", lambda *names, **options: asked.append((names, options)))
    original = evaluate.load
    with sandboxed_code_eval(CONFIG):
        metric = evaluate.load("code_eval")
        evaluate.load("exact_match", revision="1")
    assert asked == [(("exact_match",), {"revision": "1"})]
    assert evaluate.load is original
    with pytest.raises(ConfigError, match="outside the sandbox"):
        metric.compute(references=["1"], predictions=[["1"]], k=[1])
    with sandboxed_code_eval(CONFIG):  # a task that was loaded in one context works in the next
        assert metric.compute(references=["1"], predictions=[["1"]], k=[1])[0] == {"pass@1": 1.0}


@pytest.mark.parametrize("predictions", [["x = 1"], [["x"], ["x"]], [[None]], [[b"x"]]])
def test_inputs_of_other_types_or_lengths_are_refused(predictions: Any) -> None:
    with sandboxed_code_eval(CONFIG), pytest.raises(ValueError, match=r"predictions|problems"):
        evaluate.load("code_eval").compute(references=["assert x"], predictions=predictions, k=[1])


PROBLEMS = [
    {
        "task_id": f"Made/{number}",
        "prompt": f'def f{number}(x: int) -> int:\n    """Add {number}."""\n',
        "canonical_solution": f"    return x + {number}\n",
        "entry_point": f"f{number}",
        "test": f"def check(candidate):\n    assert candidate(1) == {number + 1}\n",
    }
    for number in range(4)
]


@pytest.mark.soak_but("4")
@pytest.mark.parametrize("solved", [4, 3, 0])
def test_the_harness_evaluates_its_own_humaneval(solved: int, tmp_path: Path) -> None:
    """With the installed humaneval.yaml, on local problems, and a model that knows some of the answers."""
    import lm_eval
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    class Canned(LM):  # type: ignore[misc]
        def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
            known = {problem["prompt"]: problem["canonical_solution"] for problem in PROBLEMS[:solved]}
            return [known.get(request.args[0], "    import os; os._exit(0)\n") for request in requests]

        def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            raise NotImplementedError

        def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
            raise NotImplementedError

    data = tmp_path / "problems.jsonl"
    data.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS))
    installed = Path(lm_eval.__file__).parent / "tasks" / "humaneval" / "humaneval.yaml"
    settings = {"data_files": {"test": str(data)}, "cache_dir": str(tmp_path / "cache")}
    (tmp_path / "local.yaml").write_text(
        f"include: {installed}\ntask: humaneval_local\ndataset_path: json\ndataset_kwargs: {json.dumps(settings)}\n"
    )
    with sandboxed_code_eval(CONFIG):
        tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
        found = lm_eval.simple_evaluate(
            Canned(), tasks=["humaneval_local"], task_manager=tasks, confirm_run_unsafe_code=True, log_samples=False
        )
    assert found["results"]["humaneval_local"]["pass@1,create_test"] == solved / 4


def test_the_harness_s_mbpp_scores_by_the_sandbox() -> None:
    with sandboxed_code_eval(CONFIG):
        from lm_eval.tasks.mbpp import utils

        tests = "assert twice(2) == 4\nassert twice(0) == 0"
        assert utils.pass_at_1(tests, ["def twice(x): return 2 * x"]) == 1.0
        assert utils.pass_at_1(tests, ["def twice(x): return 4"]) == 0.0


@pytest.mark.skipif(not HUMANEVAL.exists(), reason=f"no {HUMANEVAL}")
def test_every_solution_of_humaneval_passes_and_none_that_does_nothing(sandbox: Sandbox) -> None:
    with gzip.open(HUMANEVAL, "rt") as file:
        problems = [json.loads(line) for line in file]
    for body, passing in (("canonical_solution", 164), ("", 0)):
        outcomes = sandbox.run(
            [
                Program(one["prompt"] + one.get(body, "    pass\n"), f"{one['test']}\ncheck({one['entry_point']})")
                for one in problems
            ]
        )
        assert sum(outcome.passed for outcome in outcomes) == passing


@pytest.mark.skipif(not MBPP.exists(), reason=f"no {MBPP}")
def test_solutions_of_mbpp_pass(sandbox: Sandbox) -> None:
    """Of the first hundred of the harness's split, all do."""
    lines = MBPP.read_text().splitlines()
    problems = [one for one in map(json.loads, lines) if 11 <= one["task_id"] <= 110]
    for code, passing in (("code", 100), ("", 0)):
        programs = [Program(one.get(code, "pass"), "\n".join(one["test_list"])) for one in problems]
        assert sum(outcome.passed for outcome in sandbox.run(programs)) == passing
