"""Benchmarks that `download` prepares itself, as tasks of lm-evaluation-harness, written as its own YAML.

A file holds one question per line: {"id", "query", "choices", "gold"}. Each choice is scored by its likelihood as the
query's continuation, and includes its leading space.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from storage.errors import SourceError
from storage.shards.lines import read_json_lines

DATASET = "gristmill"


def questions_of(path: Path, limit: int | None, fits: Callable[[str], bool]) -> tuple[list[dict[str, Any]], int]:
    """The questions to ask, and the number left out because a choice by itself exceeds the context.

    Raises SourceError for a file that doesn't hold questions, and if none remains.
    """
    rows = _read(path, limit)
    kept = [row for row in rows if all(fits(choice) for choice in row["choices"])]
    if not kept:
        raise SourceError(
            f"None of the {len(rows)} questions of {path.stem} fits into the model's context.",
            "Leave it out of evaluate.tasks, or raise pretrain.model.context.",
        )
    return kept, len(rows) - len(kept)


def _read(path: Path, limit: int | None) -> list[dict[str, Any]]:
    try:
        rows = list(islice(read_json_lines(path), limit))
    except ValueError as error:
        raise SourceError(f"The benchmark {path.stem} isn't JSON: {error}.", "Replace the file.") from error
    for number, row in enumerate(rows, 1):
        choices = row.get("choices") if isinstance(row, dict) else None
        if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
            raise SourceError(f"Line {number} of the benchmark {path.stem} lacks choices.", "Replace the file.")
        gold = row.get("gold")
        if not isinstance(row.get("query"), str) or type(gold) is not int or not 0 <= gold < len(choices):
            raise SourceError(
                f"Line {number} of the benchmark {path.stem} lacks a query, or its gold isn't one of its choices.",
                "Replace the file.",
            )
    return rows


def write_task(name: str, folder: Path) -> None:
    """Write the YAML of a benchmark, whose data is served under (DATASET, name)."""
    import yaml

    task = {
        "task": name,
        "dataset_path": DATASET,
        "dataset_name": name,
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{query}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "gold",
        "target_delimiter": "",
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in ("acc", "acc_norm")
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "task.yaml").write_text(yaml.safe_dump(task, sort_keys=False))
