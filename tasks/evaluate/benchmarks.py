"""Benchmark files as tasks of lm-evaluation-harness (Gao et al. 2021), written as its own YAML.

A file holds one question per line: {"id", "query", "choices", "gold"}. Each choice is scored by its likelihood as the
query's continuation; a choice brings its own leading space. The harness sees only these tasks, from these files:
nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from storage.errors import ConfigError, SourceError
from storage.shards.lines import read_json_lines, write_json_lines

PREFIX = "gristmill_"  # keeps them apart from the harness's own tasks of the same name


def select(files: list[Path], chosen: list[str] | None) -> list[Path]:
    """The files of the chosen benchmarks. Raises ConfigError for an unknown one."""
    known = {path.stem: path for path in files}
    for name in chosen or ():
        if name not in known:
            raise ConfigError(f"There is no benchmark {name}.", f"evaluate.tasks may name {', '.join(sorted(known))}.")
    return [known[name] for name in sorted(chosen or known)]


def write_questions(
    files: list[Path], folder: Path, *, max_items: int | None, fits: Callable[[str], bool]
) -> dict[str, dict[str, float]]:
    """Write the questions to ask, one file per benchmark in `folder`; their number, how many were left out, and chance.

    A question is left out when one of its choices alone doesn't fit into the model's context. Raises SourceError when
    none remains. Chance is the accuracy of guessing: the mean of 1 / number of choices.
    """
    folder.mkdir(parents=True, exist_ok=True)
    about = {}
    for path in files:
        rows = _questions(path, max_items)
        asked = [row for row in rows if all(fits(choice) for choice in row["choices"])]
        if not asked:
            raise SourceError(
                f"None of the {len(rows)} questions of {path.stem} fits into the model's context.",
                "Leave it out of evaluate.tasks, or raise pretrain.model.context.",
            )
        write_json_lines(folder / path.name, asked)
        chance = sum(1 / len(row["choices"]) for row in asked) / len(asked)
        about[path.stem] = {"asked": len(asked), "too_long": len(rows) - len(asked), "chance": chance}
    return about


def _questions(path: Path, max_items: int | None) -> list[dict[str, Any]]:
    try:
        rows = list(islice(read_json_lines(path), max_items))
        json.dumps(rows, ensure_ascii=False).encode()  # a lone surrogate is JSON, but no text
    except ValueError as error:
        raise SourceError(f"The benchmark {path.stem} is not JSON: {error}.", "Replace the file.") from error
    for number, row in enumerate(rows, 1):
        choices = row.get("choices") if isinstance(row, dict) else None
        if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
            raise SourceError(f"Line {number} of the benchmark {path.stem} has no choices.", "Replace the file.")
        gold = row.get("gold")
        if not isinstance(row.get("query"), str) or type(gold) is not int or not 0 <= gold < len(choices):
            raise SourceError(
                f"Line {number} of the benchmark {path.stem} has no query, or its gold is none of its choices.",
                "Replace the file.",
            )
    return rows


def write_tasks(names: Iterable[str], folder: Path) -> list[str]:
    """Write one YAML per benchmark beside its questions; the tasks' names."""
    import yaml

    for name in names:
        data = folder / f"{name}.jsonl"
        task = {
            "task": PREFIX + name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")},
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
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task, sort_keys=False))
    return [PREFIX + name for name in names]
