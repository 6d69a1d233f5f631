"""The stage `score`: the score of one model in one benchmark, as its own artifact, so that a run measures only new
tasks and models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from tasks.children.run_many import run_several
from tasks.evaluate.other_models.hosted_model import is_hosted
from tasks.evaluate.score.config import ScoreConfig
from tasks.significance.answered import OF_TASK
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.training.model_folder import check_tokenizer

SCORE = "score.json"
Call = tuple[ScoreConfig, Sequence[Artifact], Output]


def _together(calls: Sequence[Call]) -> Iterator[int]:
    """Measures all calls, with one child per model that opens it once. A benchmark is finished when its files exist."""
    from tasks.evaluate.score.run import Job, ScoreSpec

    models: dict[Path, list[Job]] = {}
    for config, (model, task), out in calls:
        folder = model.path.resolve()
        if folder not in models and not is_hosted(model):
            check_tokenizer(folder)
        job = Job(
            runtime=out.runtime,
            scratch=out.scratch.resolve(),
            out=out.path.resolve(),
            config=config,
            task=_where(task, config.task).resolve(),
        )
        models.setdefault(folder, []).append(job)
    first = calls[0][2]
    work = [
        (ScoreSpec(runtime=first.runtime, scratch=jobs[0].scratch, out=jobs[0].out, model=model, jobs=jobs), first)
        for model, jobs in models.items()
    ]

    def on_line(done: float, line: Mapping[str, Any]) -> None:
        first.progress(done, len(calls), "benchmarks", line["note"])

    first.progress(0, len(calls), "benchmarks", "starting")
    weights = [len(spec.jobs) for spec, _ in work]
    results = run_several("tasks.evaluate.score.run", work, on_line=on_line, weights=weights, keeps="answers")
    for number, result in results:
        mine = [place for place, (_, (model, _), _) in enumerate(calls) if model.path.resolve() == [*models][number]]
        for place in mine:
            _publish(calls[place][2], result)
            yield place


def _publish(out: Output, facts: Mapping[str, Any]) -> None:
    for name in (SCORE, OF_TASK):
        shutil.copyfile(out.scratch / name, out.path / name)
    result = json.loads((out.path / SCORE).read_text(encoding="utf-8"))
    out.count(score=result, summary=f"{result['headline']} {result['metrics'][result['headline']]['value']:.3f}")
    out.fact(**facts)


def _where(task: Artifact, name: str) -> Path:
    """The folder of a task of the harness, or the file of a benchmark that `download` prepared itself."""
    folder = task.path / name
    return folder if folder.is_dir() else task.path / f"{name}.jsonl"


@stage(version=5, part_of="evaluate", runtime=("compute", "endpoint"), together=_together)
def score(config: ScoreConfig, model: Artifact, task: Artifact, out: Output) -> None:
    """Score a model in a benchmark by lm-evaluation-harness and its definition of the task.

    Writes score.json (each metric with its standard error, chance level, number of questions) and items.jsonl with a
    line per question. `task` is this benchmark's part of the benchmarks.
    """
    for _ in _together([(config, (model, task), out)]):
        pass
