"""Plans a matrix without running it: what its runs share, what is to be made, and how many seeds a difference needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from flows.estimates.arithmetic import gpu_of, shape_to_train, training_work
from flows.estimates.planned_stage import Pending, PlannedStage
from flows.estimates.stages import estimates
from flows.matrix.arms import Matrix, Member
from flows.plan import plan
from flows.session import session_of
from profiles.schema import Profile
from storage import refs
from storage.artifact import Artifact
from storage.runs.record import Estimate
from storage.store import Store
from tasks.ablate.effects import Noise
from tasks.ablate.stage import place
from tasks.stage.decorator import STAGES


class Needed(NamedTuple):
    """An artifact that runs of a matrix need. `seconds` is how long making it will take, None if that is unknown and 0
    if it is stored."""

    stage: str
    runs: int
    stored: bool
    seconds: float | None


class PlannedMatrix(NamedTuple):
    """The artifacts of a matrix, each once, in the order of the pipeline, and the noise that an earlier matrix of the
    same reference measured. `price` is that of an hour of training, in USD, None without a GPU."""

    needed: list[Needed]
    price: float | None
    noise: Noise | None
    reference: float  # the measure whose noise it is, of the reference

    @property
    def stages(self) -> list[str]:
        """The stages, in order."""
        return list(dict.fromkeys(one.stage for one in self.needed))

    def of(self, stage: str) -> list[Needed]:
        """The artifacts of a stage."""
        return [one for one in self.needed if one.stage == stage]


def plan_matrix(matrix: Matrix) -> PlannedMatrix:
    """Plan every run. Raises what a plan of one raises."""
    needed: dict[str, Needed] = {}
    first: list[PlannedStage] = []
    for member in (member for arm in matrix.members for member in arm):
        lines, expected = _plan(matrix, member)
        first = first or lines
        for identity, line in _identified(lines):
            known = needed.get(identity)
            estimate = expected.get(line.name)
            seconds = 0.0 if line.hit else estimate.seconds if estimate else None
            runs = 1 + (known.runs if known else 0)
            needed[identity] = Needed(line.name, runs, line.hit, seconds)
    order = {line.name: number for number, line in enumerate(first)}
    listed = sorted(needed.values(), key=lambda one: order.get(one.stage, len(order)))
    store = session_of(matrix.reference).store
    noise, reference = _known_noise(store, matrix, first[-1])
    return PlannedMatrix(listed, _price(matrix.reference), noise, reference)


def _price(profile: Profile) -> float | None:
    gpu = gpu_of(profile.runtime)
    devices = profile.runtime.training.processes
    return None if gpu is None or gpu.price is None else devices * gpu.price


def _plan(matrix: Matrix, member: Member) -> tuple[list[PlannedStage], Mapping[str, Estimate]]:
    profile = member.profile
    session = session_of(profile, matrix.link)
    lines = plan(profile, session)
    gpu = gpu_of(profile.runtime)
    work = training_work(profile, cuda=gpu is not None, shape=shape_to_train(profile))
    return lines, estimates(profile, session.store, lines, work, gpu)


def _identified(lines: Sequence[PlannedStage]) -> Iterator[tuple[str, PlannedStage]]:
    """Each stage with its key, or, if an input isn't made yet, a digest of its config and all that it will be made
    of."""
    identities: dict[str, str] = {}
    for line in lines:
        if line.payload is not None:
            identities[line.name] = line.payload.key()
        else:
            inputs = {name: _digest(one, identities) for name, one in STAGES[line.name].named(line.inputs).items()}
            known = json.dumps([line.name, line.config.model_dump(mode="json"), inputs], sort_keys=True)
            identities[line.name] = hashlib.sha256(known.encode()).hexdigest()
        yield identities[line.name], line


def _digest(artifact: Artifact, identities: Mapping[str, str]) -> str:
    return identities[artifact.location] if isinstance(artifact, Pending) else artifact.digest


def _known_noise(store: Store, matrix: Matrix, last: PlannedStage) -> tuple[Noise | None, float]:
    """The noise in the newest matrix whose reference is the model that this one's begins with."""
    model = f"{last.name}/{last.payload.key()}" if last.payload and last.hit else ""
    for entry in reversed(refs.history(store, f"{matrix.reference.name}/ablate") if model else []):
        manifest = store.manifest(entry.location)
        measured = manifest.origins.get(f"text.{place(0, 0)}") if manifest else None
        of = store.manifest(measured.location) if measured else None
        if manifest and of and of.origins["model"].location == model and manifest.counts.get("noise"):
            noise = manifest.counts["noise"]
            return Noise(noise["sd"], noise["freedom"]), noise["reference"]
    return None, 0.0
