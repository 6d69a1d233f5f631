"""pass@k from several samples per problem, by the harness's own humaneval and mbpp, in the sandbox."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.evaluate import EvaluateConfig
from tasks.evaluate.benchmarks import check_samples
from tasks.evaluate.config import TaskConfig
from tasks.evaluate.score.config import ScoreConfig
from tasks.evaluate.score.result import items_of, score_of
from tasks.evaluate.score.stage import score
from tasks.harness.code import sampling
from tasks.harness.config import HarnessSource
from tasks.harness.data import saved, serving
from tasks.harness.definitions import manager_of
from tasks.harness.prepare import prepare, what_code_needs
from tasks.sandbox import SandboxConfig
from tasks.stage.output import Output
from tests.tasks.tiny_model import RUNTIME, make_model, write_rows

DRAWN = {"do_sample": True, "temperature": 0.8}
PASSING = [0, 1, 3, 5]  # of five samples of each problem
HUMANEVAL = [
    {
        "task_id": f"Made/{number}",
        "prompt": f'def f{number}(x):\n    """Add {number}."""\n',
        "canonical_solution": f"    return x + {number}\n",
        "entry_point": f"f{number}",
        "test": f"def check(candidate):\n    assert candidate(1) == {number + 1}\n",
    }
    for number in range(len(PASSING))
]
MBPP = [
    {
        "task_id": number,
        "text": f"Write a function f{number} that adds {number}.",
        "code": f"def f{number}(x):\n    return x + {number}\n",
        "test_list": [f"assert f{number}({x}) == {x + number}" for x in range(3)],
    }
    for number in range(len(PASSING))
]
ROWS: dict[str, list[dict[str, Any]]] = {"humaneval": HUMANEVAL, "mbpp": MBPP}


def prepared(name: str, folder: Path) -> Path:
    """The benchmarks as `download` writes them, with one task."""
    write_rows(folder / "rows.jsonl", ROWS[name])
    splits = {"humaneval": ("test",), "mbpp": ("train", "validation", "test", "prompt")}[name]
    source = HarnessSource(task=name, files=dict.fromkeys(splits, str(folder / "rows.jsonl")))
    prepare(source, folder / "benchmarks" / name, folder / "scratch")
    return folder / "benchmarks"


def by_counting(samples: int, passing: int, k: int) -> float:
    """The share of choices of k samples that include a passing one."""
    chosen = [*combinations([True] * passing + [False] * (samples - passing), k)]
    return sum(map(any, chosen)) / len(chosen)


@pytest.mark.soak_but("humaneval")
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_a_model_that_knows_some_answers_has_their_pass_at_k(name: str, tmp_path: Path) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM

    folder = prepared(name, tmp_path) / name

    class Knows(LM):  # type: ignore[misc]
        """Answers c of five samples of a problem correctly, and each of the others wrong in its own way."""

        def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
            answers, asked = [], dict.fromkeys(range(len(PASSING)), 0)
            for request in requests:
                number, row = request.doc_id, ROWS[name][request.doc_id]
                right = row["canonical_solution"] if name == "humaneval" else row["code"]
                wrong = f"    return x - {number + 1 + asked[number]}\n"
                wrong = wrong if name == "humaneval" else f"def f{number}(x):\n{wrong}"
                answers.append(right if asked[number] < PASSING[number] else wrong)
                asked[number] += 1
            assert set(asked.values()) == {5}
            return answers

        def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            raise NotImplementedError

        def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
            raise NotImplementedError

    manager = manager_of(name)
    with (
        serving(saved(folder / "data")),
        what_code_needs(name, folder, None, SandboxConfig(seconds=20)),
        sampling(manager, 5, [2, 4]),
    ):
        measured: Any = simple_evaluate(
            Knows(), tasks=[name], task_manager=manager, confirm_run_unsafe_code=True, bootstrap_iters=10
        )
    items = items_of(name, measured, named=False, sampled=True)
    assert [(item["n"], item["c"]) for item in items] == [(5, passing) for passing in PASSING]
    found = score_of(name, measured, items)
    of = ",create_test" if name == "humaneval" else ""
    assert {*found["metrics"]} == {f"pass@{k}{of}" for k in (1, 2, 4)}
    assert found["headline"] == f"pass@1{of}"
    for k in (1, 2, 4):
        values = [by_counting(5, passing, k) for passing in PASSING]
        mean = sum(values) / 4
        error = math.sqrt(sum((value - mean) ** 2 for value in values) / 3 / 4)
        metric = found["metrics"][f"pass@{k}{of}"]
        assert (metric["value"], metric["stderr"]) == pytest.approx((mean, error), abs=1e-8)
        assert [item["scores"][f"pass@{k}{of}"] for item in items] == pytest.approx(values, abs=1e-8)


@pytest.mark.soak
def test_samples_differ_and_are_the_same_by_the_same_seed(tmp_path: Path) -> None:
    model = Artifact.at(make_model(tmp_path / "model"))
    benchmarks = Artifact.at(prepared("humaneval", tmp_path)).only("humaneval")

    def drawn(seed: int, name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        config = ScoreConfig(
            task="humaneval", samples=4, k=[1, 3], seed=seed, batch_size=3, generation={**DRAWN, "max_gen_toks": 12}
        )
        out = Output.at(tmp_path / name, stage="evaluate", runtime=RUNTIME)
        made = out.obtain(score, config, model, benchmarks)
        items = [json.loads(line) for line in (made.path / "items.jsonl").read_text().splitlines()]
        return items, json.loads((made.path / "score.json").read_text())

    (first, told), (again, _), (other, _) = drawn(1, "first"), drawn(1, "again"), drawn(2, "other")
    assert first == again
    assert [item["answers"] for item in first] != [item["answers"] for item in other]
    assert all(len(set(item["answers"])) > 1 and len(item["answers"]) == item["n"] == 4 for item in first)
    assert {*told["metrics"]} == {"pass@1,create_test", "pass@3,create_test"}
    assert told["command"].endswith("# with repeats: 4 and k: [1, 3] in the definition")


def test_what_can_not_be_estimated_is_refused_before_a_run() -> None:
    with pytest.raises(ValueError, match=r"pass@10 needs 10 samples per problem"):
        TaskConfig(task="humaneval", samples=5, k=[1, 10], generation=DRAWN)
    for generation in ({}, {"do_sample": True}, {"temperature": 0.8}, {"do_sample": True, "temperature": 0}):
        with pytest.raises(ValueError, match=r"all 5 samples of a problem would be the same"):
            TaskConfig(task="humaneval", samples=5, generation=generation)
    check_samples(EvaluateConfig(tasks=[TaskConfig(task="humaneval", samples=5, generation=DRAWN), "gsm8k", "mine"]))
    with pytest.raises(ConfigError, match=r"5 samples per problem for gsm8k"):
        check_samples(EvaluateConfig(tasks=[TaskConfig(task="gsm8k", samples=5, generation=DRAWN)]))


def test_a_task_that_judges_otherwise_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    write_rows(folder / "rows.jsonl", [{"text": "a", "answer": "b"}])
    (folder / "mine.yaml").write_text(
        "task: mine\ndataset_path: nowhere\noutput_type: generate_until\ntest_split: test\ndoc_to_text: text\n"
        "doc_to_target: answer\nmetric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n"
    )
    source = HarnessSource(task="mine", folder=str(folder), files={"test": str(folder / "rows.jsonl")})
    prepare(source, tmp_path / "benchmarks" / "mine", tmp_path / "scratch")
    manager = manager_of("mine", folder)
    with (
        serving(saved(tmp_path / "benchmarks" / "mine" / "data")),
        sampling(manager, 3, []),
        pytest.raises(ConfigError, match="mine can't take 3 samples per problem: it doesn't judge"),
    ):
        manager.load(["mine"])


def test_scores_without_samples_keep_their_keys() -> None:
    asked = ScoreConfig(task="humaneval").model_dump(mode="json")
    assert asked.keys() & {"samples", "k"} == set()
    assert {"samples": 2, "k": [2]}.items() <= ScoreConfig(
        task="humaneval", samples=2, k=[2], generation=DRAWN
    ).model_dump(mode="json").items()
