"""The time of the stages of a plan, by laws corrected by measurements (laws.py, rates.py).

Stored parts of a stage cost nothing (parts.py). A stage without a law takes as long as before, if its model had the
same size. Otherwise it has no estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flows.estimates.arithmetic import TrainingWork
from flows.estimates.expected import Expected
from flows.estimates.laws import LAWS, in_words
from flows.estimates.parts import own_seconds, part_stage, parts_of, same_inputs, seconds_of, stored_parts
from flows.estimates.planned_stage import PlannedStage
from flows.estimates.rates import Expectation, Rates
from flows.estimates.stage_inputs import parameters_of
from flows.estimates.work import Seen, work_of
from models.devices import Device
from profiles.schema import Profile
from storage.manifest import Manifest
from storage.runs.record import Estimate
from storage.store import CHECKPOINTS, Store
from tasks.stage.decorator import STAGES
from tasks.training.checkpoint_marker import complete_checkpoints

LONGEST = 1e10  # seconds, the limit of a record
SAME_SIZE = 0.05  # models whose parameters differ by less count as the same size


def estimates(
    profile: Profile,
    store: Store,
    lines: Iterable[PlannedStage],
    training: TrainingWork | None,
    gpu: Device | None = None,
    *,
    elsewhere: bool = False,
) -> dict[str, Estimate]:
    """The time of each stage that must be made, if it can be estimated. Training runs on `gpu`, which this machine
    lacks if `elsewhere`."""
    lines, by_stage = list(lines), dict[str, Estimate]()
    if all(line.hit for line in lines):
        return by_stage
    manifests, expected = dict(store.manifests()), Expected(profile, training)
    rates = Rates(manifests, profile.runtime.data.workers, _flops(profile, training, gpu), elsewhere=elsewhere)
    for line in lines:
        seen = expected.seen_by(line)
        if line.hit:
            continue
        left = _left(store, line, training)
        one = _estimate(rates, manifests, line, seen)
        if one is not None:
            rest = f", from step {resumes_at(store, line):,} of {training.steps:,}" if training and left < 1 else ""
            seconds = min(LONGEST, one.fixed + (one.seconds - one.fixed) * left)
            by_stage[line.name] = Estimate(seconds=seconds, fixed=one.fixed, source=one.source + rest)
    return by_stage


def _flops(profile: Profile, training: TrainingWork | None, gpu: Device | None) -> float | None:
    """FLOPs a second of all GPUs together, from their data sheet and the utilisation."""
    if gpu is None:
        return None
    peak = gpu.peak(training.products if training else "half")
    devices = training.devices if training else profile.runtime.training.processes
    return peak and peak * gpu.utilisation * devices


def _left(store: Store, line: PlannedStage, training: TrainingWork | None) -> float:
    """The share of a training's steps that follow its newest checkpoint."""
    if line.name != "pretrain" or training is None:
        return 1.0
    return max(0.0, 1 - resumes_at(store, line) / training.steps)


def resumes_at(store: Store, line: PlannedStage) -> int:
    """The step of the newest complete checkpoint of a stage, on this machine or in the bucket, or 0 without one."""
    if line.hit or line.payload is None or "training" not in STAGES[line.name].runtime:
        return 0
    key = line.payload.key()
    steps = [*complete_checkpoints(store.local / "work" / f"{line.name}-{key}" / "scratch" / "checkpoints")]
    if not store.is_folder:
        names = store.sizes(f"{CHECKPOINTS}/{line.name}/{key}")
        whole = [name.split("/")[0].split("-") for name in names if name.endswith("/remote.json")]
        steps += [int(parts[1]) for parts in whole if len(parts) > 1 and parts[1].isdigit()]
    return max(steps, default=0)


def _estimate(rates: Rates, manifests: Mapping[str, Manifest], line: PlannedStage, seen: Seen) -> Expectation | None:
    earlier = line.manifest
    work = work_of(line.name, line.config.model_dump(), seen) if line.name in LAWS else None
    if work is None:
        return _as_before(manifests, line, seen)
    own = rates.expect(line.name, work)
    own = own._replace(source=f"{in_words(work)}, {own.source}")
    wanted = STAGES[line.name].parts
    known = parts_of(manifests, earlier) if earlier else {}
    if wanted is None:
        return _with_stored_parts(line, own, known)
    parts = wanted(line.config)
    stored = stored_parts(manifests, line, known, parts)
    missing, unknown = list[Expectation](), list[str]()
    for name, config in parts.items():
        stage = part_stage(name, known).name
        part_work = work_of(stage, config.model_dump(), seen)
        if name in stored:
            continue
        if part_work is not None:
            missing.append(rates.expect(stage, part_work))
        elif name in known:
            missing.append(Expectation(seconds_of(known[name]), 0.0, ""))
        else:
            unknown.append(name)
    others = ", the rest from the store" if stored else ""
    without = f", without {', '.join(unknown)}, which no run has measured" if unknown else ""
    every = [own, *missing]
    seconds, fixed = sum(one.seconds for one in every), sum(one.fixed for one in every)
    return Expectation(seconds, fixed, own.source + others + without)


def _with_stored_parts(line: PlannedStage, own: Expectation, known: Mapping[str, Manifest]) -> Expectation:
    """The time of a stage that doesn't declare its parts: with the same inputs, its earlier parts count as stored."""
    earlier = line.manifest
    if earlier is None or not known or not same_inputs(line, earlier):
        return own
    if line.refresh & {part.stage for part in known.values()}:
        return own
    before, now = seconds_of(earlier), own.seconds
    left = own_seconds(earlier, known.values()) + max(0.0, now - before)
    return Expectation(left, own.fixed, f"{earlier.stage}/{earlier.key[:8]}, its parts from the store")


def _as_before(manifests: Mapping[str, Manifest], line: PlannedStage, seen: Seen) -> Expectation | None:
    """The earlier time of a stage without a law, if its model had this size."""
    earlier = line.manifest
    if line.name in LAWS or earlier is None or not (took := seconds_of(earlier)):
        return None
    origin = earlier.origins.get("model")
    model = manifests.get(origin.location) if origin else None
    size = parameters_of(model) if model else None
    if size and seen.parameters and abs(seen.parameters / size - 1) > SAME_SIZE:
        return None
    return Expectation(took, 0.0, f"{earlier.stage}/{earlier.key[:8]}")
