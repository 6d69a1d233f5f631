"""The figures of a record: an artifact's counts, flat, and an evaluation's scores with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from storage.artifact import Artifact
from storage.manifest import Manifest
from storage.runs.record import Score, StageRecord
from tasks.stage.session import Step

MOST = 60  # figures of a stage, to keep a record small
LEFT_OUT = {"tables", "sources", "summary", "scores"}  # words, and scores, which a record has apart
Z = 1.96  # standard errors of a 95 % interval


def stage_record(step: Step) -> StageRecord:
    """The record of a stage's step."""
    artifact, manifest = step.artifact, step.artifact.manifest
    peak = manifest.facts.get("peak_memory_bytes") if manifest else None
    return StageRecord(
        location=artifact.location,
        digest=artifact.digest,
        cached=step.cached,
        why=step.why,
        part_of=step.part_of,
        seconds=round(step.worked, 3),
        waited=round(step.waited, 3),
        peak_memory_bytes=peak,
        figures=figures_of(manifest) if manifest else {},
    )


def figures_of(manifest: Manifest) -> dict[str, float]:
    """The first `MOST` numbers among an artifact's counts, by dotted name."""
    return dict(list(_numbers(manifest.counts))[:MOST])


def _numbers(counts: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    for name, value in counts.items():
        if isinstance(value, Mapping) and name not in LEFT_OUT:
            yield from _numbers(value, f"{above}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{above}{name}", float(value)


def scores_of(evaluation: Artifact) -> dict[str, Score]:
    """The scores of an evaluation: for each model, bits per byte and the headline of each task."""
    manifest = evaluation.manifest
    return scores_in(manifest.counts.get("scores", {}) if manifest else {})


def scores_in(models: Mapping[str, Any]) -> dict[str, Score]:
    """The same, of the scores in an evaluation's counts or a release's scores.json."""
    scores = dict[str, Score]()
    for model, counts in models.items():
        if counts.get("bits_per_byte") is not None:
            scores[f"{model} bits per byte"] = Score(value=counts["bits_per_byte"])
        for task, score in counts.get("tasks", {}).items():
            value, error = float(score["value"]), score.get("stderr")
            apart = None if error is None else Z * error
            low, high = (None, None) if apart is None else (round(value - apart, 6), round(value + apart, 6))
            if low is not None and high is not None and 0 <= value <= 1 and score.get("chance") is not None:
                low, high = max(low, 0.0), min(high, 1.0)  # a share
            scores[f"{model} {task}"] = Score(value=value, low=low, high=high)
    return scores
