"""The examples before a question: never the question itself, as many as the profile sets, and all within the context.

lm-evaluation-harness draws a task's examples from one of its splits. It excludes the current question only if
`fewshot_split` and `test_split` are the same or both missing (0.4.13, `ConfigurableTask.fewshot_context`), and only a
row with the same columns. So a task with only a test split, with two splits of one file, or with choices that are
shuffled again would show questions their own answers. The harness also ignores `shots` if a definition fixes their
number.

The harness's draw stays as it is unless it includes the question. Then more examples are drawn in the same way. So only
scores with a leaked answer differ from the harness's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigError

if TYPE_CHECKING:
    from lm_eval.api.model import LM
    from lm_eval.api.task import ConfigurableTask

Row = Mapping[str, Any]
SPECIAL_TOKENS = 8  # maximum that a tokenizer may add. Every other token stands for a byte or more


@dataclass
class Drawn:
    """The number of questions that the harness drew as their own examples."""

    replaced: int = 0


@contextmanager
def examples_of_others(shots: int | None) -> Iterator[Drawn]:
    """Within the block, no question is shown among its own examples. Raises ConfigError for `shots` that a task doesn't
    show, and for a task with fewer examples."""
    from lm_eval.api.task import ConfigurableTask

    before = ConfigurableTask.fewshot_context
    drawn = Drawn()

    def context(task: ConfigurableTask, doc: Row, num_fewshot: int, **more: Any) -> Any:
        _check_shown(task, shots, num_fewshot)
        if not num_fewshot:
            return before(task, doc, num_fewshot=num_fewshot, **more)
        theirs = task.sampler
        task.sampler = _Others(task, doc, drawn)
        try:
            return before(task, doc, num_fewshot=num_fewshot, **more)
        finally:
            task.sampler = theirs

    ConfigurableTask.fewshot_context = context
    try:
        yield drawn
    finally:
        ConfigurableTask.fewshot_context = before


def _check_shown(task: ConfigurableTask, shots: int | None, shown: int) -> None:
    if shots and task.OUTPUT_TYPE == "loglikelihood_rolling":
        shown = 0  # whatever is drawn, as only the text itself is scored
    if shots is not None and shots != shown:
        raise ConfigError(
            f"{task.config.task} always shows {shown} examples, by its definition, and `shots` is {shots}.",
            "Remove `shots` of the task, or define your own task in a folder.",
        )


class _Others:
    """A task's sampler for one question, which draws only other rows."""

    def __init__(self, task: ConfigurableTask, doc: Row, drawn: Drawn) -> None:
        self.task, self.doc, self.drawn, self.sampler = task, doc, drawn, task.sampler

    def sample(self, n: int, **more: Any) -> Sequence[Row]:
        """`n` examples as the harness's sampler draws them, without the question."""
        others = self._others(self._draw(n, n, more))
        self.drawn.replaced += len(others) < n
        size = n
        while len(others) < n:
            size += n - len(others)
            others = self._others(self._draw(size, n, more))
        return others[:n]

    def _draw(self, size: int, shots: int, more: Mapping[str, Any]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        with suppress(ValueError, AssertionError):  # of random.sample, and of the sampler that takes the first ones
            rows = self.sampler.sample(n=size, **more)
        if len(rows) < size:
            raise ConfigError(
                f"{self.task.config.task} has fewer than {shots} examples besides the question itself.",
                "Lower `shots` of the task, or prepare more rows of the split that its examples come from.",
            )
        return rows

    def _others(self, examples: Sequence[Row]) -> list[Row]:
        return [one for one in examples if not self._is_the_question(one)]

    def _is_the_question(self, example: Row) -> bool:
        """Whether the example is the question's row, or the same row of the data (which a definition that shuffles
        choices turns into two), or has the same question and answer as text."""
        doc, task = self.doc, self.task
        if example == doc:
            return True
        columns = [name for split in _splits(task) for name in task.dataset[split].column_names]
        if columns and all(name in doc and name in example and doc[name] == example[name] for name in columns):
            return True
        shown = task.fewshot_cfg
        return _read(task, doc) == _read(task, example, shown.doc_to_text, shown.doc_to_choice, shown.doc_to_target)


def _splits(task: ConfigurableTask) -> list[str]:
    """The split of the questions, if it is known by name."""
    return [split for split in (task.config.test_split or task.config.validation_split,) if split in task.dataset]


def _read(task: ConfigurableTask, row: Row, text: Any = None, choice: Any = None, target: Any = None) -> list[str]:
    """A row as the task shows it among examples: the question and the answer."""
    question, answer = task.doc_to_text(row, text), task.doc_to_target(row, target)
    choices = task.doc_to_choice(row, choice) if task.config.doc_to_choice is not None else None
    if choices and isinstance(question, int):  # as in WinoGrande, whose choices precede the question
        question = choices[question]
    elif choices and isinstance(answer, int):
        answer = choices[answer]
    return [str(question), str(answer[0] if isinstance(answer, list) and answer else answer)]


def cut_prompts(lm: LM, measured: Mapping[str, Any]) -> int:
    """The number of questions whose prompt exceeds the model's context, from the harness's results: it silently drops
    their beginning, the first examples. An endpoint refuses such a prompt itself."""
    if not hasattr(lm, "tok_encode"):
        return 0
    return sum(
        len({sample["doc_id"] for sample in samples if any(_is_cut(lm, one) for one in sample["arguments"])})
        for samples in measured["samples"].values()
    )


def _is_cut(lm: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether a request is cut: never a single text, which is scored in windows, but possibly a prompt with its
    continuation, or a prompt with arguments of generation."""
    if len(arguments) < 2:
        return False
    prompt, more = arguments[:2]
    if isinstance(more, str):  # the last token is predicted, never read
        text, room = prompt + more, lm.max_length + 1
    else:
        from lm_eval.models.utils import normalize_gen_kwargs

        settings: Any = normalize_gen_kwargs(dict(more), lm.max_gen_toks)
        text, room = prompt, lm.max_length - settings["max_gen_toks"]
    return len(text.encode()) + SPECIAL_TOKENS > room and len(lm.tok_encode(text)) > room
