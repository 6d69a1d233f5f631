"""Several samples a problem: the harness's tasks that run programs, changed in memory so that pass@k can be estimated.

Their definitions ask for one answer, or for a number of their own (`humaneval_64`), and MBPP's knows pass@1 alone. What
changes is how often a problem is asked, that all answers go to the metric, and which k it estimates; prompts, how an
answer becomes a program, and tests stay the definition's.
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
    """Within the block the manager's tasks are asked `samples` times a problem, and have pass@k for each k and for 1;
    with None they stay as they are. Raises ConfigError for one that doesn't run its answers as programs."""
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
            f"{name} was asked for {samples} samples a problem, and it doesn't judge answers by running them.",
            "Ask for samples in tasks such as humaneval and mbpp alone.",
        )

    def estimates(references: Sequence[str], predictions: Sequence[Any], k: Sequence[int]) -> dict[str, float]:
        if any(isinstance(programs, str) or len(programs) != samples for programs in predictions):
            raise ConfigError(
                f"The filters of {name} leave fewer than the {samples} samples of a problem.",
                "Take the filter that chooses one out of its definition.",
            )
        return CodeEval().compute(references=references, predictions=predictions, k=k)[0]

    from lm_eval.api.metrics import mean
    from lm_eval.filters import build_filter_ensemble

    task.set_config("repeats", samples)
    task._metric_fn_list, task._metric_fn_kwargs = {"pass_at_k": estimates}, {"pass_at_k": {"k": [*k]}}
    task._aggregation_list, task._higher_is_better = {"pass_at_k": mean}, {"pass_at_k": True}
    if task.config.filter_list is None:  # which takes the first
        task._filters = [build_filter_ensemble("none", [["take_first_k", {"k": samples}]])]
