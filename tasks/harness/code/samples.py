"""Several samples per problem: changes the harness's tasks that run programs, in memory, so that they estimate pass@k.

Their definitions ask for one answer or a fixed number (`humaneval_64`), and MBPP's has only pass@1. Here each problem
is asked several times, all answers go to the metric, and the profile chooses each k. Prompts, the extraction of a
program from an answer, and tests stay as defined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigError
from tasks.harness.code.code_eval import CodeEval

if TYPE_CHECKING:
    from lm_eval.api.task import Task
    from lm_eval.tasks import TaskManager

METRICS = {"pass_at_k", "pass_at_1"}  # the harness's names of functions that ask `code_eval`


@contextmanager
def sampling(manager: TaskManager, samples: int | None, k: Sequence[int]) -> Iterator[None]:
    """Within the block, the manager's tasks ask each problem `samples` times, and score pass@k for each k and for 1.
    With None they stay unchanged. Loading a task that doesn't run its answers as programs raises ConfigError."""
    if samples is None:
        yield
        return
    before = manager.load

    def load(*names: Any) -> Any:
        loaded = before(*names)
        for task in loaded["tasks"].values():
            _ask(task, samples, sorted({1, *k}))
        return loaded

    manager.load = load
    try:
        yield
    finally:
        manager.load = before


def _ask(task: Task, samples: int, k: Sequence[int]) -> None:
    name = task.config.task
    if task.OUTPUT_TYPE != "generate_until" or task.config.process_results or not {*task._metric_fn_list} <= METRICS:
        raise ConfigError(
            f"{name} can't take {samples} samples per problem: it doesn't judge answers by running them.",
            "Set samples only for tasks such as humaneval and mbpp.",
        )

    def estimates(references: Sequence[str], predictions: Sequence[Any], k: Sequence[int]) -> dict[str, float]:
        if any(isinstance(programs, str) or len(programs) != samples for programs in predictions):
            raise ConfigError(
                f"The filters of {name} keep fewer than the {samples} samples of a problem.",
                "Remove the filter that selects one from its definition.",
            )
        return CodeEval().compute(references=references, predictions=predictions, k=k)[0]

    from lm_eval.api.metrics import mean
    from lm_eval.filters import build_filter_ensemble

    task.set_config("repeats", samples)
    task._metric_fn_list, task._metric_fn_kwargs = {"pass_at_k": estimates}, {"pass_at_k": {"k": [*k]}}
    task._aggregation_list, task._higher_is_better = {"pass_at_k": mean}, {"pass_at_k": True}
    if task.config.filter_list is None:  # which takes the first
        task._filters = [build_filter_ensemble("none", [["take_first_k", {"k": samples}]])]
