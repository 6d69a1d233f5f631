"""What was trained: the vocabulary and the tokens, the curves of each training, and what each step of the chain did."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from flows.report.lineage import Lineage
from flows.report.reading import counted, mapping, number, rows, table, whole
from storage.artifact import Artifact
from storage.manifest import Manifest
from storage.shards.lines import read_json_lines
from tasks.posttrain.rewards.config import DRAWN
from tasks.training.chain import LINKS

POINTS = 500  # of a curve: the mean of equal spans of steps, so that a long training draws as fast as a short one
PLACES = 6  # digits
SAMPLES = 6  # continuations shown
MEASURED = "Bytes per token"  # a table of the tokenizer
PAIRS = ("pairs", "trained on", "held out")  # of the table of a link


class SourceTokens(BaseModel):
    """The tokens of a source in one split, and the bytes that one stands for."""

    source: str
    split: str
    documents: int
    tokens: int
    bytes_per_token: float | None


class Tokens(BaseModel):
    """The vocabulary, and the text as tokens."""

    ids: int | None = None
    bytes_per_token: float | None = None
    measured: dict[str, float] = {}
    train: int | None = None
    held_out: int | None = None
    by_source: list[SourceTokens] = []


class Point(BaseModel):
    """A curve at the last of `steps` steps: means of the training loss, and what was measured at this step."""

    step: int
    loss: float | None = None
    low: float | None = None
    high: float | None = None
    learning_rate: float | None = None
    validation: float | None = None


class Sample(BaseModel):
    """A continuation of a prompt."""

    prompt: str
    how: str
    text: str


class Training(BaseModel):
    """A training: its result, its losses before and after on held-out data, its speed, and what disturbed it.
    `measures` are those of learning from rewards, by step."""

    stage: str
    key: str
    figures: dict[str, float] = {}
    before: float | None = None
    after: float | None = None
    change: tuple[float, float, float] | None = None  # with the bounds of its 95 % interval
    pairs: dict[str, int] = {}
    dropped: dict[str, int] = {}
    device: str = ""
    processes: int | None = None
    tokens_per_second: float | None = None
    utilisation: float | None = None
    steps_in_a_point: int = 1
    curve: list[Point] = []
    measures: dict[str, list[tuple[int, float]]] = {}
    events: list[dict[str, Any]] = []
    samples: list[Sample] = []


# In log.jsonl, of a step and of held-out prompts
MEASURES = [f"{of}{name}" for name in ("reward", *DRAWN) for of in ("", "validation_")]
FIGURES = (
    "parameters",
    "steps",
    "tokens_seen",
    "epochs",
    "train_loss",
    "validation_loss",
    "validation_bits_per_byte",
    "validation_token_accuracy",
    "validation_preference_accuracy",
    "initial_validation_reward",
    "validation_reward",
    "best_validation_loss",
    "best_validation_step",
    "skipped_batches",
    "rollbacks",
)


def tokens_of(lineage: Lineage) -> Tokens | None:
    """The vocabulary and the counts of tokens. None without either."""
    stages = lineage.stages()
    vocabulary, text = stages.get("tokenizer"), stages.get("tokenize")
    if vocabulary is None and text is None:
        return None
    counts = text.counts if text else {}
    measured = vocabulary.counts if vocabulary else {}
    by_source = {str(row.get("source")): number(row.get("bytes per token")) for row in table(vocabulary, MEASURED)}
    return Tokens(
        ids=whole(measured.get("vocab_size")),
        bytes_per_token=number(measured.get("bytes_per_token", counts.get("bytes_per_token"))),
        measured={source: found for source, found in by_source.items() if found is not None},
        train=whole(mapping(counts, "train").get("tokens")),
        held_out=whole(mapping(counts, "validation").get("tokens")),
        by_source=[
            SourceTokens(
                source=str(row.get("source")),
                split=str(row.get("split")),
                documents=whole(row.get("documents")) or 0,
                tokens=whole(row.get("tokens")) or 0,
                bytes_per_token=number(row.get("bytes per token")),
            )
            for row in table(text, "Tokens by source and split")
            if row.get("source") != "all"
        ],
    )


def trainings_of(lineage: Lineage, *, samples: bool) -> list[Training]:
    """Pretraining, if any, then the steps of post-training in their order."""
    return [
        _training(stage, manifest, lineage.open(manifest), samples=samples)
        for stage, manifest in lineage.stages().items()
        if stage in ("pretrain", *LINKS, "draft")
    ]


def _training(stage: str, manifest: Manifest, artifact: Artifact | None, *, samples: bool) -> Training:
    counts, facts = manifest.counts, manifest.facts
    change, low, high = (number(counts.get(f"validation_loss_change{end}")) for end in ("", "_low", "_high"))
    log = _log(artifact)
    span = max(1, math.ceil(len(log) / POINTS))
    pairs = {str(row.get("measure")): whole(row.get("value")) for row in table(manifest, stage.upper())}
    return Training(
        stage=stage,
        key=manifest.key,
        figures={name: found for name in FIGURES if (found := number(counts.get(name))) is not None},
        before=number(counts.get("initial_validation_loss")),
        after=number(counts.get("validation_loss")),
        change=None if change is None or low is None or high is None else (change, low, high),
        pairs={name: found for name in PAIRS if (found := pairs.get(name)) is not None},
        dropped=counted(mapping(counts, "documents").get("removed")) if stage in LINKS else {},
        device=str(facts.get("device", "")),
        processes=whole(facts.get("processes")),
        tokens_per_second=number(facts.get("tokens_per_second")),
        utilisation=number(facts.get("mfu_data_sheet")) or number(facts.get("mfu_measured")),
        steps_in_a_point=span,
        curve=list(_curve(log, table(manifest, "Validation"), span)),
        measures=_measures(log, span) if any("reward" in row for row in log) else {},
        events=[dict(event) for event in rows(facts.get("events"))],
        samples=list(_samples(artifact))[:SAMPLES] if samples else [],
    )


def _log(artifact: Artifact | None) -> list[Mapping[str, Any]]:
    if artifact is None or not artifact.names("log.jsonl"):
        return []
    return rows(list(read_json_lines(artifact.file("log.jsonl"))))


def _curve(log: Sequence[Mapping[str, Any]], validated: Sequence[Mapping[str, Any]], span: int) -> Iterator[Point]:
    """The mean loss of each `span` steps with its range, and every validation, in order of steps."""
    points: dict[int, Point] = {}

    def at(row: Mapping[str, Any]) -> Point:
        step = whole(row.get("step")) or 0
        return points.setdefault(step, Point(step=step))

    for row in validated:
        at(row).validation = number(row.get("loss"))
    for first in range(0, len(log), span):
        part = log[first : first + span]
        losses = [loss for row in part if (loss := number(row.get("loss"))) is not None]
        point = at(part[-1])
        rate = number(part[-1].get("learning_rate"))
        point.learning_rate = None if rate is None else float(f"{rate:.{PLACES}g}")
        if losses:
            ends = (sum(losses) / len(losses), min(losses), max(losses))
            point.loss, point.low, point.high = (round(one, PLACES) for one in ends)
        for row in part:
            if (validation := number(row.get("validation_loss"))) is not None:
                at(row).validation = round(validation, PLACES)
    for step in sorted(points):
        yield points[step]


def _measures(log: Sequence[Mapping[str, Any]], span: int) -> dict[str, list[tuple[int, float]]]:
    """The mean of each measure over each `span` steps, at the last of these."""
    found: dict[str, list[tuple[int, float]]] = {}
    for first in range(0, len(log), span):
        part = log[first : first + span]
        for name in MEASURES:
            values = [value for row in part if (value := number(row.get(name))) is not None]
            if values:
                mean = round(sum(values) / len(values), PLACES)
                found.setdefault(name, []).append((whole(part[-1].get("step")) or 0, mean))
    return found


def _samples(artifact: Artifact | None) -> Iterator[Sample]:
    """The continuations of samples.md."""
    if artifact is None or not artifact.names("samples.md"):
        return
    text = artifact.file("samples.md").read_text(encoding="utf-8")
    prompt = ""
    for part in re.split(r"^(?=## |\*\*)", text, flags=re.MULTILINE):
        head, _, rest = part.partition("\n")
        if head.startswith("## "):
            prompt = head.removeprefix("## ")
        elif head.startswith("**"):
            quoted = [line.removeprefix(">").removeprefix(" ") for line in rest.splitlines() if line.startswith(">")]
            yield Sample(prompt=prompt, how=head.strip("*"), text="\n".join(quoted))


def parameters_of(stages: Mapping[str, Manifest]) -> int | None:
    """The parameters of the model that was pretrained, if the lineage has that."""
    found = stages.get("pretrain") or stages.get("base")
    return whole(found.counts.get("parameters")) if found else None
