"""Checks that a task can judge answers by its data. The harness itself would silently score them as wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storage.errors import SourceError

if TYPE_CHECKING:
    from lm_eval.api.task import Task


def check_columns(name: str, task: Task) -> None:
    """Raises SourceError for a column that the definition reads and the data lack.

    The harness takes such a name for the text itself: every right answer of BoolQ would become the word "label".
    """
    fields = ("doc_to_text", "doc_to_target", "doc_to_choice")
    named = {field: getattr(task.config, field, None) for field in fields}
    for field, column in named.items():
        if isinstance(column, str) and column.isidentifier() and column not in task.features:
            raise SourceError(
                f"The data of the task {name} lack the column {column}, which its {field} reads. Columns: "
                f"{', '.join(task.features)}.",
                f'Give files with this column, or make it from others: `columns: {{{column}: "{{{{…}}}}"}}`.',
            )


def check_right(name: str, number: int, answer: Any, choices: list[Any]) -> None:
    """Raises SourceError for a question whose right answer isn't among its choices, such as −1 in hidden tests."""
    for right in answer if isinstance(answer, list) else [answer]:
        known = right in (range(len(choices)) if isinstance(right, int | float) else choices)
        if not known:
            raise SourceError(
                f"The right answer to question {number} of the task {name} is {right!r:.80}, which isn't among its "
                f"{len(choices)} choices.",
                "Remove the question from the files, or fix its answer. Test sets with hidden answers can't be used.",
            )
