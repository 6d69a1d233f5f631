"""What was trained: the vocabulary and the tokens, the curves of each training, and what each step of the chain did."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from flows.report.data import tables
from flows.report.lineage import Lineage
from storage.artifact import Artifact
from storage.manifest import Manifest
from storage.shards.lines import read_json_lines
from tasks.training.chain import LINKS

POINTS = 600  # of a curve: the mean of equal spans of steps, so that a long training draws as fast as a short one
SAMPLES = 6  # continuations shown
PLACES = 6  # digits of a loss


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
    """A training: its result, its losses before and after on held-out data, its speed, and what disturbed it."""

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
    events: list[dict[str, Any]] = []
    samples: list[Sample] = []


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
    return Tokens(
        ids=measured.get("vocab_size"),
        bytes_per_token=measured.get("bytes_per_token", counts.get("bytes_per_token")),
        measured={str(row["source"]): float(row["bytes per token"]) for row in tables(vocabulary, "Bytes per token")},
        train=counts.get("train", {}).get("tokens"),
        held_out=counts.get("validation", {}).get("tokens"),
        by_source=[
            SourceTokens(
                source=str(row["source"]),
                split=str(row["split"]),
                documents=int(row["documents"]),
                tokens=int(row["tokens"]),
                bytes_per_token=_number(row.get("bytes per token")),
            )
            for row in tables(text, "Tokens by source and split")
            if row["source"] != "all"
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
    low, high = (counts.get(f"validation_loss_change_{end}") for end in ("low", "high"))
    change = counts.get("validation_loss_change")
    log = _log(artifact)
    span = max(1, math.ceil(len(log) / POINTS))
    rows = counts.get("tables", {}).get(stage.upper(), [])
    pairs = {str(row["measure"]): row["value"] for row in rows if row["measure"] in ("pairs", "trained on", "held out")}
    return Training(
        stage=stage,
        key=manifest.key,
        figures={name: counts[name] for name in FIGURES if _number(counts.get(name)) is not None},
        before=counts.get("initial_validation_loss"),
        after=counts.get("validation_loss"),
        change=None if change is None or low is None or high is None else (change, low, high),
        pairs={name: int(value) for name, value in pairs.items()},
        dropped=counts["documents"]["removed"] if stage in LINKS and "documents" in counts else {},
        device=str(facts.get("device", "")),
        processes=facts.get("processes"),
        tokens_per_second=facts.get("tokens_per_second"),
        utilisation=facts.get("mfu_data_sheet") or facts.get("mfu_measured"),
        steps_in_a_point=span,
        curve=list(_curve(log, tables(manifest, "Validation"), span)),
        events=list(facts.get("events", [])),
        samples=list(_samples(artifact))[:SAMPLES] if samples else [],
    )


def _log(artifact: Artifact | None) -> list[dict[str, Any]]:
    if artifact is None or not artifact.names("log.jsonl"):
        return []
    return list(read_json_lines(artifact.file("log.jsonl")))


def _curve(log: list[dict[str, Any]], validated: list[dict[str, Any]], span: int) -> Iterator[Point]:
    """The mean loss of each `span` steps with its range, and every validation, in order of steps."""
    points: dict[int, Point] = {}
    for row in validated:
        points[int(row["step"])] = Point(step=int(row["step"]), validation=_rounded(row.get("loss")))
    for first in range(0, len(log), span):
        rows = log[first : first + span]
        losses = [row["loss"] for row in rows if _number(row.get("loss")) is not None]
        point = points.setdefault(int(rows[-1]["step"]), Point(step=int(rows[-1]["step"])))
        point.learning_rate = _number(rows[-1].get("learning_rate"))
        if losses:
            point.loss = _rounded(sum(losses) / len(losses))
            point.low, point.high = _rounded(min(losses)), _rounded(max(losses))
        for row in rows:
            if _number(row.get("validation_loss")) is not None:
                points.setdefault(int(row["step"]), Point(step=int(row["step"]))).validation = _rounded(
                    row["validation_loss"]
                )
    yield from (points[step] for step in sorted(points))


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


def _number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _rounded(value: object) -> float | None:
    number = _number(value)
    return None if number is None else round(number, PLACES)


def parameters_of(stages: Mapping[str, Manifest]) -> int | None:
    """The parameters of the model that was pretrained, if the lineage has that."""
    found = stages.get("pretrain") or stages.get("base")
    return found.counts.get("parameters") if found else None
