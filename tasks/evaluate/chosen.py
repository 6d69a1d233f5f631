"""The benchmarks that a profile asks for, each with its part of what `download` prepared."""

from __future__ import annotations

from typing import NamedTuple

from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.score.config import ScoreConfig
from tasks.harness.definitions import definition_digest
from tasks.harness.prepare import DEFINITION


class Chosen(NamedTuple):
    """One benchmark: what is asked, and its data."""

    config: ScoreConfig
    data: Artifact


def chosen(config: EvaluateConfig, benchmarks: Artifact) -> dict[str, Chosen]:
    """The benchmarks by their names in tables. Raises ConfigError for one that was not prepared."""
    known = sorted(path.stem for path in benchmarks.files("*.jsonl"))
    found: dict[str, Chosen] = {}
    for task in config.asked(known):
        if task.task not in known:
            raise ConfigError(
                f"There is no benchmark {task.task}.", f"evaluate.tasks may name {', '.join(known)}; see download."
            )
        folder = benchmarks.path / task.task
        of_harness = folder.is_dir()
        definition = definition_digest(task.task) if of_harness and not (folder / DEFINITION).is_dir() else None
        data = benchmarks.only(task.task if of_harness else f"{task.task}.jsonl")
        found[task.label] = Chosen(config.score(task, definition), data)
    return found
