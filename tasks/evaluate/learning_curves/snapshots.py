"""Snapshots of a pretraining run as models by name: `base@500` is the base after 500 steps.

`pretrain.snapshot_every` keeps them in the artifact, in the format of transformers with the tokenizer beside, so that
each is a part of the artifact like the model itself: it has a digest, and a score of it is cached by that.
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
    """`tokens` is None where the artifact doesn't say how many the model has seen."""

    step: int
    tokens: int | None
    model: Artifact


def snapshot_name(model: str, step: int) -> str:
    """`base@500`."""
    return f"{model}@{step}"


def is_snapshot(name: str) -> bool:
    """Whether a model of this name is a snapshot."""
    return "@" in name


def snapshots(trained: Artifact) -> list[Snapshot]:
    """The snapshots that an artifact of `pretrain` holds, by step."""
    steps = [int(found[1]) for name in trained.folders("snapshots/step-*") if (found := FOLDER.fullmatch(name))]
    return [Snapshot(step, tokens_of(part), part) for step in sorted(steps) for part in [_part(trained, step)]]


def chosen_snapshots(trained: Artifact, steps: Sequence[int], model: str = "base") -> dict[str, Artifact]:
    """The snapshots of these steps as models by name, in the order of steps. Also of an artifact that a plan only
    expects. Raises ConfigError for a step without one, naming those that there are."""
    found = {}
    for step in sorted(set(steps)):
        try:
            found[snapshot_name(model, step)] = _part(trained, step)
        except DamagedArtifact as error:
            known = ", ".join(f"{one.step:,}" for one in snapshots(trained)) or "none"
            raise ConfigError(
                f"{trained.location or trained.path} has no snapshot of step {step:,}; it has: {known}.",
                "Choose of these steps, or set pretrain.snapshot_every, which trains again.",
            ) from error
    return found


def check_steps(steps: Sequence[int], every: int | None, last: int | None = None) -> None:
    """Raises ConfigError for steps of which `pretrain.snapshot_every` will keep no snapshot, before anything runs.
    `last` is the step with which the training ends, where that is known."""
    if not steps:
        return
    if every is None:
        raise ConfigError("Snapshots are to be evaluated, but none is kept.", "Set pretrain.snapshot_every.")
    missed = [step for step in steps if step < 1 or step % every]
    if missed:
        raise ConfigError(
            f"There will be no snapshot of step {missed[0]:,}: pretrain.snapshot_every is {every:,}.",
            f"Choose multiples of {every:,}.",
        )
    if last is not None and max(steps) >= last:
        raise ConfigError(
            f"There will be no snapshot of step {max(steps):,}: pretraining ends with step {last:,}.",
            "Choose earlier ones; the model of the last step is base, which is in the curves too.",
        )


def tokens_of(model: Artifact) -> int | None:
    """The tokens that a model had seen in pretraining: of the part `model` or of a snapshot. None where the artifact
    doesn't say, as one that was made elsewhere."""
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
    """Of artifacts that have no tokens by snapshot: right where all steps are of one size."""
    step, steps, seen = (
        _whole_number(value) for value in (row.get("step"), counts.get("steps"), counts.get("tokens_seen"))
    )
    return seen * step // steps if seen and step and steps else None


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _part(trained: Artifact, step: int) -> Artifact:
    return trained.part(f"snapshots/step-{step}")
