"""What the models score, and what became of their formats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from flows.records.figures import Z
from flows.report.data import tables
from flows.report.lineage import Lineage
from storage.manifest import Manifest

SAFETY = "safety"  # begins the names of tasks that measure safety


class Score(BaseModel):
    """A model's score in a benchmark with its 95 % interval, the score of guessing, and the verdict on both."""

    model: str
    task: str
    metric: str
    value: float
    low: float | None
    high: float | None
    chance: float | None
    items: int | None
    verdict: str
    higher_is_better: bool
    safety: bool


class Bits(BaseModel):
    """Bits per byte of held-out text of a source, with the 95 % interval. The source is `all` for the whole text."""

    model: str
    source: str
    value: float
    low: float | None
    high: float | None


class Format(BaseModel):
    """A format of a release: its size, and its difference to the checkpoint with the limits that it had to keep."""

    name: str
    bytes: int
    divergence: float
    divergence_limit: float
    perplexity: float
    increase: float
    increase_low: float
    increase_high: float
    increase_limit: float
    same_top: float
    same_greedy: int
    prompts: int
    verdict: str
    prompt_speed: float | None
    generation_speed: float | None
    memory: int | None


class Answer(BaseModel):
    """A prompt and what each model answers."""

    prompt: str
    answers: dict[str, str]


class Results(BaseModel):
    """The measurements of an evaluation and a release."""

    bits: list[Bits] = []
    scores: list[Score] = []
    gates: list[dict[str, str]] = []
    answers: list[Answer] = []
    formats: list[Format] = []


def results_of(lineage: Lineage, *, answers: int) -> Results | None:
    """The scores and formats, with the answers to the first prompts. None without any."""
    stages = lineage.stages()
    evaluation, release = stages.get("evaluate"), stages.get("export")
    found = Results(
        bits=list(_bits(lineage, evaluation)),
        scores=list(_scores(evaluation)),
        gates=[{name: str(value) for name, value in row.items()} for row in tables(evaluation, "Gates")],
        answers=list(_answers(evaluation))[:answers],
        formats=list(_formats(release)),
    )
    return found if any((found.bits, found.scores, found.formats)) else None


def _models(evaluation: Manifest | None) -> Mapping[str, Any]:
    return evaluation.counts.get("scores", {}) if evaluation else {}


def _scores(evaluation: Manifest | None) -> Iterator[Score]:
    for model, counts in _models(evaluation).items():
        for task, score in counts.get("tasks", {}).items():
            value, error = float(score["value"]), score.get("stderr")
            apart = None if error is None else Z * error
            share = score.get("chance") is not None and 0 <= value <= 1
            low, high = (None, None) if apart is None else (value - apart, value + apart)
            if share and low is not None and high is not None:
                low, high = max(low, 0.0), min(high, 1.0)
            yield Score(
                model=model,
                task=task,
                metric=str(score.get("metric", "")),
                value=value,
                low=low,
                high=high,
                chance=score.get("chance"),
                items=score.get("items"),
                verdict=score.get("worth") or "",
                higher_is_better=bool(score.get("higher_is_better", True)),
                safety=task.startswith(SAFETY),
            )


def _bits(lineage: Lineage, evaluation: Manifest | None) -> Iterator[Bits]:
    """Of each model, for the whole text and by source, as its part of the evaluation measured it."""
    used = {name: ref.location for name, ref in evaluation.uses.items()} if evaluation else {}
    for model, counts in _models(evaluation).items():
        location = lineage.store.twin(used[part]) if (part := f"language_modelling.{model}") in used else ""
        node = lineage.nodes.get(location)
        measured = node.manifest.counts.get("language", {}) if node and node.manifest else {}
        if "bits_per_byte" in measured:
            yield _bit(model, "all", measured)
        elif counts.get("bits_per_byte") is not None:
            yield Bits(model=model, source="all", value=counts["bits_per_byte"], low=None, high=None)
        for source, found in measured.get("sources", {}).items():
            yield _bit(model, source, found)


def _bit(model: str, source: str, found: Mapping[str, Any]) -> Bits:
    value, error = found["bits_per_byte"], found.get("bits_per_byte_stderr")
    low, high = (None, None) if error is None or not math.isfinite(error) else (value - Z * error, value + Z * error)
    return Bits(model=model, source=source, value=value, low=low, high=high)


def _answers(evaluation: Manifest | None) -> Iterator[Answer]:
    for row in tables(evaluation, "Answers"):
        yield Answer(prompt=str(row["prompt"]), answers={k: str(v) for k, v in row.items() if k != "prompt"})


def _formats(release: Manifest | None) -> Iterator[Format]:
    speeds = release.facts.get("speeds", {}) if release else {}
    for name, proof in (release.counts.get("formats", {}) if release else {}).items():
        limits, speed = proof["tolerance"], speeds.get(name, {})
        yield Format(
            name=name,
            bytes=proof["bytes"],
            divergence=proof["mean_divergence"],
            divergence_limit=limits["max_divergence"],
            perplexity=proof["perplexity"],
            increase=proof["perplexity_increase"],
            increase_low=proof["increase_low"],
            increase_high=proof["increase_high"],
            increase_limit=limits["max_perplexity_increase"],
            same_top=proof["same_top"],
            same_greedy=proof["same_greedy"],
            prompts=proof["prompts"],
            verdict="passed",  # export publishes no other
            prompt_speed=speed.get("prompt"),
            generation_speed=speed.get("generation"),
            memory=speed.get("peak_memory"),
        )
