"""The benchmarks that a profile asks for, each with its part of what `download` prepared."""

from __future__ import annotations

import json
from typing import NamedTuple

from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.score.config import ScoreConfig
from tasks.harness.definitions import definition_digest, is_known, runs_programs
from tasks.harness.prepare import ABOUT, DEFINITION


class Chosen(NamedTuple):
    """One benchmark: what is asked, and its data."""

    config: ScoreConfig
    data: Artifact
    wants_text: bool = False  # as an answer: nothing but that can be asked of an endpoint


def chosen(config: EvaluateConfig, benchmarks: Artifact) -> dict[str, Chosen]:
    """The benchmarks by their names in tables. Raises ConfigError for one that was not prepared."""
    known = [name.removesuffix(".jsonl") for name in benchmarks.names("*.jsonl")]
    found: dict[str, Chosen] = {}
    for task in config.asked(known):
        if task.task not in known:
            raise ConfigError(
                f"There is no benchmark {task.task}.", f"evaluate.tasks may name {', '.join(known)}; see download."
            )
        of_harness = benchmarks.has_folder(task.task)
        defined = benchmarks.has_folder(f"{task.task}/{DEFINITION}")
        definition = definition_digest(task.task) if of_harness and not defined else None
        data = benchmarks.only(task.task if of_harness else f"{task.task}.jsonl")
        found[task.label] = Chosen(config.score(task, definition), data, of_harness and _wants_text(data, task.task))
    return found


def _wants_text(data: Artifact, task: str) -> bool:
    tasks = json.loads(data.file(f"{task}/{ABOUT}").read_text(encoding="utf-8"))["tasks"]
    return all(task["output"] == "generate_until" for task in tasks.values())


def check_samples(config: EvaluateConfig) -> None:
    """Raises ConfigError for samples of a task of the harness that runs no programs."""
    for task in config.asked([]):
        if task.samples is not None and is_known(task.task) and not runs_programs(task.task):
            raise ConfigError(
                f"evaluate.tasks asks for {task.samples} samples a problem in {task.task}, which doesn't judge answers "
                "by running them.",
                "Leave samples to tasks such as humaneval and mbpp.",
            )
