"""The metric `code_eval` of Hugging Face's `evaluate`, without the hub and in the sandbox.

lm-evaluation-harness's humaneval and mbpp fetch it from the hub when they are imported, try it at once, and would run
programs with this process's rights. Here `evaluate.load("code_eval")` returns an object with the original's results,
from programs run in the sandbox: `({"pass@1": …}, {problem: [(sample, {…}), …]})`. The original's environment variable
HF_ALLOW_CODE_EVAL, by which a user accepts the danger of running programs, isn't needed in a sandbox.

Apart from where programs run, one thing differs: a program and its tests are compiled separately, so that an unfinished
program (one with a decorator at its end, for instance) can't swallow its tests.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from storage.errors import ConfigError
from tasks.harness.code.pass_at_k import pass_at_k
from tasks.sandbox import Outcome, Program, Sandbox, SandboxConfig

NAME = "code_eval"
Results = dict[int, list[tuple[int, dict[str, Any]]]]


class CodeEval:
    """Replaces `evaluate.EvaluationModule`. The harness keeps the one that a task module got on import, so each call
    looks up the sandbox of the current context."""

    name = NAME
    sandboxes: list[Sandbox] = []  # noqa: RUF012  (of the open contexts, the innermost last)

    def compute(
        self,
        *,
        predictions: Sequence[Sequence[str]],
        references: Sequence[str],
        k: Sequence[int] = (1, 10, 100),
        num_workers: int = 4,
        timeout: float | None = None,
    ) -> tuple[dict[str, float], Results]:
        """Compute pass@k over problems, and each program's outcome, in the original's format.

        `predictions` has several programs for each problem, `references` the tests of each problem. A k that exceeds
        the number of samples of any problem is left out. The sandbox decides how many programs run at a time and for
        how long, not `num_workers` and `timeout`. Raises ConfigError outside `sandboxed_code_eval`, ValueError for
        inputs of other types or lengths.
        """
        if not self.sandboxes:
            raise ConfigError(
                "A model's program would have run outside the sandbox.", "Use `with sandboxed_code_eval(…)`."
            )
        if len(predictions) != len(references):
            raise ValueError(f"{len(predictions)} problems have programs, {len(references)} have tests")
        for candidates, tests in zip(predictions, references, strict=True):
            if isinstance(candidates, str) or not all(isinstance(one, str) for one in (tests, *candidates)):
                raise ValueError("predictions are lists of programs, one for each problem, and references are tests")
        programs = [
            (number, Program(candidate, tests))
            for number, (candidates, tests) in enumerate(zip(predictions, references, strict=True))
            for candidate in candidates
        ]
        outcomes = self.sandboxes[-1].run([program for _, program in programs])
        results: Results = {}
        for (number, _), outcome in zip(programs, outcomes, strict=True):
            done = results.setdefault(number, [])
            done.append((len(done), _as_result(number, len(done), outcome)))
        counts = [(len(done), sum(one["passed"] for _, one in done)) for done in results.values()]
        return {f"pass@{size}": _mean(counts, size) for size in k if all(total >= size for total, _ in counts)}, results


def _mean(counts: list[tuple[int, int]], k: int) -> float:
    """The mean by numpy's summation, which equals the original's to the last digit."""
    import numpy as np

    return float(np.array([pass_at_k(samples, passed, k) for samples, passed in counts]).mean())


def _as_result(problem: int, sample: int, outcome: Outcome) -> dict[str, Any]:
    texts = {"passed": "passed", "timed out": "timed out", "failed": f"failed: {outcome.message}"}
    return {
        "task_id": problem,
        "passed": outcome.passed,
        "result": texts.get(outcome.state, f"failed: {outcome.detail or outcome.state}"),
        "completion_id": sample,
    }


@contextmanager
def sandboxed_code_eval(config: SandboxConfig, workers: int | None = None) -> Iterator[Sandbox]:
    """Within the block, `evaluate.load("code_eval")` returns CodeEval. Every other metric is loaded as before.

    The harness's tasks must be loaded within it, and run within it or a later one. Not for concurrent threads. Raises
    ConfigError if the machine offers less isolation than the config requires.
    """
    evaluate = importlib.import_module("evaluate")  # the harness's dependency, not ours
    original = evaluate.load

    def load(path: str, *arguments: Any, **options: Any) -> Any:
        return CodeEval() if path == NAME else original(path, *arguments, **options)

    with Sandbox(config, workers) as sandbox:
        evaluate.load = load  # type: ignore[attr-defined]
        CodeEval.sandboxes.append(sandbox)
        try:
            yield sandbox
        finally:
            CodeEval.sandboxes.remove(sandbox)
            evaluate.load = original  # type: ignore[attr-defined]
