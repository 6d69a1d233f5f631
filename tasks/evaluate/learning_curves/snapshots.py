"""Snapshots of a pretraining run as models by name: `base@500` is the base after 500 steps.

`pretrain.snapshot_every` keeps them in the artifact, in the format of transformers and with the tokenizer, so that each
is a part of the artifact like the model itself, with a digest by which its scores are cached.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact

MODEL = "model"
FOLDER = re.compile(r"snapshots/step-([1-9][0-9]*)")


class Snapshot(NamedTuple):
    """A snapshot of a run. `tokens` is None if the artifact doesn't say how many the model has seen."""

    step: int
    tokens: int | None
    model: Artifact


def snapshot_name(model: str, step: int) -> str:
    """The name of a snapshot, such as `base@500`."""
    return f"{model}@{step}"


def is_snapshot(name: str) -> bool:
    """Whether a model of this name is a snapshot."""
    return "@" in name


def snapshots(trained: Artifact) -> list[Snapshot]:
    """The snapshots that an artifact of `pretrain` holds, by step."""
    steps = [int(match[1]) for name in trained.folders("snapshots/step-*") if (match := FOLDER.fullmatch(name))]
    return [Snapshot(step, tokens_of(part), part) for step in sorted(steps) for part in [_part(trained, step)]]


def chosen_snapshots(trained: Artifact, steps: Sequence[int], model: str = "base") -> dict[str, Artifact]:
    """The snapshots of these steps as models by name, in the order of steps. Works for an artifact that a plan only
    expects, too. Raises ConfigError for a step without a snapshot, naming the existing ones."""
    models = {}
    for step in sorted(set(steps)):
        try:
            models[snapshot_name(model, step)] = _part(trained, step)
        except DamagedArtifact as error:
            known = ", ".join(f"{one.step:,}" for one in snapshots(trained)) or "none"
            raise ConfigError(
                f"{trained.location or trained.path} lacks a snapshot of step {step:,}. It has: {known}.",
                "Choose among these steps, or set pretrain.snapshot_every, which trains again.",
            ) from error
    return models


def check_steps(steps: Sequence[int], every: int | None, last: int | None = None) -> None:
    """Raises ConfigError, before anything runs, for steps that `pretrain.snapshot_every` won't keep a snapshot of.
    `last` is the last step of the training, if known."""
    if not steps:
        return
    if every is None:
        raise ConfigError("evaluate.snapshots needs snapshots, but none is kept.", "Set pretrain.snapshot_every.")
    missed = [step for step in steps if step < 1 or step % every]
    if missed:
        raise ConfigError(
            f"Step {missed[0]:,} won't have a snapshot: pretrain.snapshot_every is {every:,}.",
            f"Choose multiples of {every:,}.",
        )
    if last is not None and max(steps) >= last:
        raise ConfigError(
            f"Step {max(steps):,} won't have a snapshot: pretraining ends with step {last:,}.",
            "Choose earlier steps. The model of the last step is base, which the curves include.",
        )


def tokens_of(model: Artifact) -> int | None:
    """The tokens that a model has seen in pretraining, for the part `model` or a snapshot. None if the artifact doesn't
    say, as one that was made elsewhere."""
    if model.manifest is None:
        return None
    counts = model.manifest.counts
    if model.part_name == MODEL:
        return _whole_number(counts.get("tokens_seen"))
    for row in counts.get("tables", {}).get("Snapshots", []):
        if row.get("folder") == model.part_name:
            return _whole_number(row.get("tokens")) or _in_proportion(row, counts)
    return None


def _in_proportion(row: dict[str, object], counts: dict[str, object]) -> int | None:
    """An estimate for artifacts without tokens per snapshot, which is exact if all steps have the same size."""
    step, steps, seen = (
        _whole_number(value) for value in (row.get("step"), counts.get("steps"), counts.get("tokens_seen"))
    )
    return seen * step // steps if seen and step and steps else None


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _part(trained: Artifact, step: int) -> Artifact:
    return trained.part(f"snapshots/step-{step}")
