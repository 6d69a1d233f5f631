"""What the models score, and what became of their formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from flows.records.figures import Z
from flows.report.lineage import Lineage
from flows.report.reading import mapping, number, table, whole
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
    divergence: float | None
    divergence_limit: float | None
    perplexity: float | None
    increase: float | None
    increase_low: float | None
    increase_high: float | None
    increase_limit: float | None
    same_top: float | None
    same_greedy: int | None
    prompts: int | None
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
        gates=[{name: str(value) for name, value in row.items()} for row in table(evaluation, "Gates")],
        answers=list(_answers(evaluation))[:answers],
        formats=list(_formats(release)),
    )
    return found if any((found.bits, found.scores, found.formats)) else None


def _models(evaluation: Manifest | None) -> Mapping[str, Any]:
    return mapping(evaluation.counts, "scores") if evaluation else {}


def _scores(evaluation: Manifest | None) -> Iterator[Score]:
    for model, counts in _models(evaluation).items():
        for task, found in mapping(counts, "tasks").items():
            score = mapping(found)
            if (value := number(score.get("value"))) is None:
                continue
            chance = number(score.get("chance"))
            low, high = _interval(value, number(score.get("stderr")))
            if chance is not None and 0 <= value <= 1 and low is not None and high is not None:
                low, high = max(low, 0.0), min(high, 1.0)  # a share
            yield Score(
                model=model,
                task=task,
                metric=str(score.get("metric", "")),
                value=value,
                low=low,
                high=high,
                chance=chance,
                items=whole(score.get("items")),
                verdict=str(score.get("worth") or ""),
                higher_is_better=bool(score.get("higher_is_better", True)),
                safety=task.startswith(SAFETY),
            )


def _interval(value: float, error: float | None) -> tuple[float | None, float | None]:
    return (None, None) if error is None else (value - Z * error, value + Z * error)


def _bits(lineage: Lineage, evaluation: Manifest | None) -> Iterator[Bits]:
    """Of each model, for the whole text and by source, as its part of the evaluation measured it."""
    used = {name: ref.location for name, ref in evaluation.uses.items()} if evaluation else {}
    for model, counts in _models(evaluation).items():
        location = lineage.store.twin(used[part]) if (part := f"language_modelling.{model}") in used else ""
        node = lineage.nodes.get(location)
        measured = mapping(node.manifest.counts, "language") if node and node.manifest else {}
        for source, found in {"all": measured or mapping(counts), **mapping(measured, "sources")}.items():
            if (value := number(mapping(found).get("bits_per_byte"))) is not None:
                low, high = _interval(value, number(mapping(found).get("bits_per_byte_stderr")))
                yield Bits(model=model, source=source, value=value, low=low, high=high)


def _answers(evaluation: Manifest | None) -> Iterator[Answer]:
    for row in table(evaluation, "Answers"):
        yield Answer(prompt=str(row.get("prompt")), answers={k: str(v) for k, v in row.items() if k != "prompt"})


def _formats(release: Manifest | None) -> Iterator[Format]:
    speeds = mapping(release.facts, "speeds") if release else {}
    for name, found in (mapping(release.counts, "formats") if release else {}).items():
        proof, limits, speed = mapping(found), mapping(found, "tolerance"), mapping(speeds, name)
        size = whole(proof.get("bytes"))
        if size is None:
            continue
        yield Format(
            name=name,
            bytes=size,
            divergence=number(proof.get("mean_divergence")),
            divergence_limit=number(limits.get("max_divergence")),
            perplexity=number(proof.get("perplexity")),
            increase=number(proof.get("perplexity_increase")),
            increase_low=number(proof.get("increase_low")),
            increase_high=number(proof.get("increase_high")),
            increase_limit=number(limits.get("max_perplexity_increase")),
            same_top=number(proof.get("same_top")),
            same_greedy=whole(proof.get("same_greedy")),
            prompts=whole(proof.get("prompts")),
            verdict="passed",  # export publishes no other
            prompt_speed=number(speed.get("prompt")),
            generation_speed=number(speed.get("generation")),
            memory=whole(speed.get("peak_memory")),
        )
