"""Benchmark files as tasks of lm-evaluation-harness (Gao et al. 2021), written as its own YAML.

A file holds one question a line: {"id", "query", "choices", "gold"}. What is scored is the likelihood of each choice
as the query's continuation; a choice brings its own leading space. The harness sees these tasks only, from these
files only: nothing is downloaded.
"""

from __future__ import annotations

import json
from pathlib import Path

from storage.errors import ConfigError, SourceError

PREFIX = "gristmill_"  # apart from any task of that name which the harness brings along


def select(files: list[Path], chosen: list[str] | None) -> list[Path]:
    """The files of the chosen benchmarks. Raises ConfigError for one that there is not."""
    known = {path.stem: path for path in files}
    for name in chosen or ():
        if name not in known:
            raise ConfigError(f"There is no benchmark {name}.", f"evaluate.tasks may name {', '.join(sorted(known))}.")
    return [known[name] for name in sorted(chosen or known)]


def write_tasks(files: list[Path], folder: Path, max_items: int | None) -> list[str]:
    """One YAML and one file of questions a benchmark in `folder`; the tasks' names."""
    import yaml

    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        lines = path.read_text(encoding="utf-8").splitlines()[:max_items]
        if not lines:
            raise SourceError(f"The benchmark {path.stem} is empty.", "Leave it out of evaluate.tasks.")
        data = folder / path.name
        data.write_text("\n".join(lines) + "\n", encoding="utf-8")
        task = {
            "task": PREFIX + path.stem,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "{{query}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "gold",
            "target_delimiter": "",
            "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in ("acc", "acc_norm")],
        }
        (folder / f"{path.stem}.yaml").write_text(yaml.safe_dump(task, sort_keys=False))
    return [PREFIX + path.stem for path in files]


def chance(path: Path, max_items: int | None) -> float:
    """The accuracy of guessing: the mean of 1 / number of choices."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:max_items]]
    return sum(1 / len(row["choices"]) for row in rows) / len(rows)
