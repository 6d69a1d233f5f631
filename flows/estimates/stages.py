"""How long a stage will take: as long as it took before, scaled by what drives its work, and from where that is known.

A stage has a fixed part (processes start, libraries are imported) and one that grows: with the floating-point
operations of pretraining, with the epochs of post-training, with the bytes of text that a data stage reads. Of a stage
with parts whose inputs are the same as before, the parts are taken to be in the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import ValidationError

from flows.plan import PlannedStage
from models.presets import ShapeError, count_parameters, derive, flops_per_token
from profiles.schema import Profile
from storage.errors import DamagedArtifact
from storage.manifest import Manifest
from storage.runs.record import Estimate
from storage.store import CHECKPOINTS, Store
from tasks.pretrain import PretrainConfig
from tasks.stage.decorator import STAGES
from tasks.training.checkpoint_marker import complete_checkpoints

SAME = 0.05  # of a ratio: from there on a stage is said to be scaled


class Training(NamedTuple):
    """The pretraining of a profile: its work, and how long that takes by arithmetic, where that was asked for."""

    flops: int
    steps: int
    seconds: float | None = None


def training_of(profile: Profile, seconds: float | None = None) -> Training | None:
    """Without a look at the device; None of a profile that doesn't pretrain."""
    if profile.pretrain is None:
        return None
    shape = derive(profile.pretrain.model, profile.tokenizer.vocab_size)
    steps = profile.pretrain.total_steps(shape)
    tokens = profile.pretrain.samples(steps) * shape.context
    return Training(flops_per_token(shape) * tokens, steps, seconds)


def estimates(store: Store, lines: Iterable[PlannedStage], training: Training | None) -> dict[str, Estimate]:
    """Of each stage that must be made and of which anything is known, how long it will take."""
    found, read = {}, dict[str, float]()  # bytes of text that come out of a stage
    for line in lines:
        if line.manifest is not None:
            read[line.name] = _text_out(line, line.manifest, read)
        if line.hit:
            continue
        estimate = _estimate(store, line, training, read)
        if estimate:
            found[line.name] = estimate
    return found


def resumes_at(store: Store, line: PlannedStage) -> int:
    """The step of the newest whole checkpoint from which a stage goes on, on this machine or in the bucket; else 0."""
    if line.hit or line.payload is None or "training" not in STAGES[line.name].runtime:
        return 0
    key = line.payload.key()
    steps = [*complete_checkpoints(store.local / "work" / f"{line.name}-{key}" / "scratch" / "checkpoints")]
    if not store.is_folder:
        names = store.sizes(f"{CHECKPOINTS}/{line.name}/{key}")
        whole = [name.split("/")[0].split("-") for name in names if name.endswith("/remote.json")]
        steps += [int(parts[1]) for parts in whole if len(parts) > 1 and parts[1].isdigit()]
    return max(steps, default=0)


def _estimate(
    store: Store, line: PlannedStage, training: Training | None, read: Mapping[str, float]
) -> Estimate | None:
    earlier = line.manifest
    seconds = float(earlier.facts.get("seconds", 0)) if earlier else 0.0
    resumed = resumes_at(store, line) if line.name == "pretrain" and training else 0
    left = max(0.0, 1 - resumed / training.steps) if training else 1.0
    rest = f", from step {resumed:,} of {training.steps:,}" if training and resumed else ""
    if earlier is None or not seconds:  # an adopted one took no time
        if line.name == "pretrain" and training and training.seconds is not None:
            return Estimate(seconds=training.seconds * left, source=f"arithmetic{rest}")
        return None
    fixed, ratio = _growth(line, earlier, training, read)
    parts = _parts(store, earlier)
    own = max(0.0, seconds - sum(part.seconds for part in parts if part.within))
    if parts and line.payload and line.payload.inputs == earlier.payload.inputs:
        return Estimate(seconds=own, source=f"{_named(earlier)}, its parts from the store")
    seconds = own + sum(part.seconds for part in parts)  # also of those that it found in the store
    scaled = fixed + (seconds - fixed) * ratio * left
    source = _named(earlier) if abs(ratio - 1) <= SAME else f"scaled ×{ratio:,.3g} from {_named(earlier)}"
    return Estimate(seconds=scaled, source=source + rest)


def _named(manifest: Manifest) -> str:
    return f"{manifest.stage}/{manifest.key[:8]}"


def _growth(
    line: PlannedStage, earlier: Manifest, training: Training | None, read: Mapping[str, float]
) -> tuple[float, float]:
    """The seconds of an earlier artifact that are the same for any size, and how much more work there is now."""
    seconds = float(earlier.facts["seconds"])
    if line.name == "pretrain" and training is not None:
        done = _flops(earlier)
        fixed = seconds * float(earlier.facts.get("starting_share", 0.0))
        return (fixed, training.flops / done) if done else (0.0, 1.0)
    if "training_seconds" in earlier.facts:
        epochs, once = line.config.model_dump().get("epochs"), earlier.payload.config.get("epochs")
        ratio = epochs / once if epochs and once else 1.0
        return seconds - float(earlier.facts["training_seconds"]), ratio
    before, now = earlier.facts.get("bytes_in"), _text_in(line, read)
    return 0.0, (now / before if before and now else 1.0)


def _flops(pretrained: Manifest) -> float:
    """Model FLOPs of an earlier pretraining, by its config and the vocabulary that its parameters tell of; 0 where that
    can't be said."""
    tokens, parameters = pretrained.counts.get("tokens_seen"), pretrained.counts.get("parameters")
    try:
        config = PretrainConfig.model_validate(pretrained.payload.config)
        shape = derive(config.model, int(pretrained.counts.get("vocab_size", 0)) or _vocabulary(config, parameters))
    except (ValidationError, ShapeError, ValueError):
        return 0.0
    return float(flops_per_token(shape) * tokens) if tokens else 0.0


def _vocabulary(config: PretrainConfig, parameters: int | None) -> int:
    """The vocabulary with which a model has so many parameters: they grow linearly with it."""
    if parameters is None:
        raise ValueError("the number of parameters is not known")
    small, large = (count_parameters(derive(config.model, size)) for size in (1024, 2048))
    return max(1, round(1024 + 1024 * (parameters - small) / (large - small)))


def _text_in(line: PlannedStage, read: Mapping[str, float]) -> float | None:
    """Bytes of text that a stage will read: of its input, or as its input is expected to have."""
    given = STAGES[line.name].named(line.inputs).get("documents")
    if given is None:
        return None
    if given.manifest is not None:
        return given.manifest.facts.get("text_bytes")
    return read.get(given.location.partition("/")[0])


def _text_out(line: PlannedStage, manifest: Manifest, read: Mapping[str, float]) -> float:
    """Bytes of text of a stage's documents: of what is there, or as an earlier run kept them of what it read."""
    wrote, took = manifest.facts.get("text_bytes", 0), manifest.facts.get("bytes_in")
    now = None if line.hit else _text_in(line, read)
    return float(wrote * now / took if now and took else wrote)


class _Part(NamedTuple):
    seconds: float
    within: bool  # it was made while the whole was


def _parts(store: Store, manifest: Manifest) -> list[_Part]:
    """The parts of an artifact, as far as they are there yet."""
    found = []
    for place in manifest.uses.values():
        with suppress(DamagedArtifact):
            part = store.manifest(place.location)
            if part and part.stage in STAGES and STAGES[part.stage].part_of:
                found.append(_Part(float(part.facts.get("seconds", 0)), _within(part, manifest)))
    return found


def _within(part: Manifest, whole: Manifest) -> bool:
    made = datetime.fromisoformat(whole.created)
    began = made - timedelta(seconds=float(whole.facts.get("seconds", 0)) + 1)
    return began <= datetime.fromisoformat(part.created) <= made
