"""The stage `score`: what one model scores in one benchmark, an artifact of its own, so that another task or another
model measures only what is new."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from tasks.children.supervise import run_module
from tasks.evaluate.score.config import ScoreConfig
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.training.model_folder import check_tokenizer

ITEMS, SCORE = "items.jsonl", "score.json"
Call = tuple[ScoreConfig, Sequence[Artifact], Output]


def _together(calls: Sequence[Call]) -> Iterator[int]:
    """All benchmarks of a model in one child, which opens it once; each is done when the child says so."""
    models: dict[Path, list[int]] = {}
    for number, (_, (model, _), _) in enumerate(calls):
        models.setdefault(model.path, []).append(number)
    for numbers in models.values():
        yield from _of_one_model([calls[number] for number in numbers], numbers)


def _of_one_model(calls: Sequence[Call], numbers: Sequence[int]) -> Iterator[int]:
    from tasks.evaluate.score.run import Job, ScoreSpec

    _, (model, _), first = calls[0]
    check_tokenizer(model.path)
    jobs = [
        Job(
            runtime=out.runtime,
            scratch=out.scratch.resolve(),
            out=out.path.resolve(),
            config=config,
            task=_where(task, config.task).resolve(),
        )
        for config, (_, task), out in calls
    ]
    spec = ScoreSpec(
        runtime=first.runtime,
        scratch=first.scratch.resolve(),
        out=first.path.resolve(),
        model=model.path.resolve(),
        jobs=jobs,
    )

    def on_line(line: Mapping[str, Any]) -> None:
        first.progress(line["done"], len(calls), "benchmarks", line["note"])

    result = run_module("tasks.evaluate.score.run", spec, first, on_line=on_line, ranks=False, keeps="answers")
    for place, number in enumerate(numbers):
        out = calls[place][2]
        for name in (SCORE, ITEMS):
            shutil.copyfile(out.scratch / name, out.path / name)
        found = json.loads((out.path / SCORE).read_text(encoding="utf-8"))
        out.count(score=found, summary=f"{found['headline']} {found['metrics'][found['headline']]['value']:.3f}")
        out.fact(**result)
        yield number


def _where(task: Artifact, name: str) -> Path:
    """A folder for a task of the harness, a file for a benchmark that `download` prepared itself."""
    folder = task.path / name
    return folder if folder.is_dir() else task.path / f"{name}.jsonl"


@stage(version=1, part_of="evaluate", runtime=("compute",), together=_together)
def score(config: ScoreConfig, model: Artifact, task: Artifact, out: Output) -> None:
    """What a model scores in a benchmark, by lm-evaluation-harness and by its definition of the task.

    Writes score.json (each metric with its standard error, chance level, number of questions) and items.jsonl with a
    line a question. `task` is of the benchmarks what belongs to this one.
    """
    for _ in _together([(config, (model, task), out)]):
        pass
