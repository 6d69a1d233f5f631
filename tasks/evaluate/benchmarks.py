"""The benchmarks in a profile, each with its part of the data that `download` prepared."""

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
    """One benchmark: its questions' config, and its data."""

    config: ScoreConfig
    data: Artifact
    wants_text: bool = False  # as an answer, the only kind that an endpoint can give


def chosen(config: EvaluateConfig, benchmarks: Artifact) -> dict[str, Chosen]:
    """The benchmarks by their names in tables. Raises ConfigError for one that wasn't prepared."""
    known = [name.removesuffix(".jsonl") for name in benchmarks.names("*.jsonl")]
    by_label: dict[str, Chosen] = {}
    for task in config.asked(known):
        if task.task not in known:
            raise ConfigError(
                f"The benchmark {task.task} is unknown.",
                f"evaluate.tasks may name {', '.join(known)}: see the section download.",
            )
        of_harness = benchmarks.has_folder(task.task)
        defined = benchmarks.has_folder(f"{task.task}/{DEFINITION}")
        definition = definition_digest(task.task) if of_harness and not defined else None
        data = benchmarks.only(task.task if of_harness else f"{task.task}.jsonl")
        wants_text = of_harness and _wants_text(data, task.task)
        by_label[task.label] = Chosen(config.score(task, definition), data, wants_text)
    return by_label


def _wants_text(data: Artifact, task: str) -> bool:
    tasks = json.loads(data.file(f"{task}/{ABOUT}").read_text(encoding="utf-8"))["tasks"]
    return all(task["output"] == "generate_until" for task in tasks.values())


def check_samples(config: EvaluateConfig) -> None:
    """Raises ConfigError for samples of a task of the harness that doesn't run programs."""
    for task in config.asked([]):
        if task.samples is not None and is_known(task.task) and not runs_programs(task.task):
            raise ConfigError(
                f"evaluate.tasks sets {task.samples} samples per problem for {task.task}, which doesn't judge answers "
                "by running them.",
                "Set samples only for tasks such as humaneval and mbpp.",
            )
