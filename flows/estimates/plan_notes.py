"""What a plan says beside its stages: what its sources are, whether kernels are to be compiled, who makes a stage
already, where a training goes on, how good the last estimates were, and the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.markup import escape

from flows.estimates.arithmetic import TrainingPlan
from flows.estimates.planned_stage import PlannedStage
from flows.estimates.stages import resumes_at
from flows.estimates.work import OF_DOCUMENTS
from profiles.load import CLEAN
from profiles.schema import Profile
from storage.errors import StoreError, harmless
from storage.files import locks
from storage.files.cache import cache_folder
from storage.files.disk import existing
from storage.maintain import find_garbage
from storage.runs import history
from storage.runs.alive import running
from storage.store import Store
from storage.units import duration, size_of
from tasks.download.config import FileSource
from tasks.download.sources.files import find_files, size
from tasks.filter.presets import HEURISTICS
from tasks.stage.decorator import STAGES

LOOKED_AT = 50  # records
LEAST = 1.0  # seconds of a stage whose estimate counts


class Room(NamedTuple):
    """Bytes on the disk of the store, or of the local side of a bucket: what a run needs, what is free, and what a
    collection would free."""

    needed: int
    checkpoints: int  # of these
    free: int
    garbage: int


def room_of(
    store: Store, lines: Sequence[PlannedStage], sizes: Mapping[str, int], training: TrainingPlan | None
) -> Room:
    """As far as the `sizes` of artifacts and the arithmetic of checkpoints tell."""
    missing = [line for line in lines if not line.hit]
    artifacts = sum(sizes.get(line.name, 0) for line in missing)
    trains = training is not None and any(line.name == "pretrain" for line in missing)
    checkpoints = training.disk if training is not None and trains else 0
    free = shutil.disk_usage(existing(store.local)).free
    return Room(artifacts + checkpoints, checkpoints, free, _garbage(store, missing))


def _garbage(store: Store, missing: Sequence[PlannedStage]) -> int:
    """What a collection would free, without the work that these stages would go on with."""
    found = find_garbage(store, 1)
    keys = [(line.name, line.payload.key()) for line in missing if line.payload]
    folders, places = {f"{name}-{key}" for name, key in keys}, {f"{name}/{key}" for name, key in keys}
    resumed = sum(size for path, size in found.workspaces.items() if path.name in folders)
    return found.size - resumed - sum(size for place, size in found.checkpoints.items() if place in places)


def told_of_room(
    store: Store, lines: Sequence[PlannedStage], sizes: Mapping[str, int], training: TrainingPlan | None
) -> Iterator[str]:
    """What is needed, and a warning where it does not fit."""
    if all(line.hit for line in lines):
        return
    room = room_of(store, lines, sizes, training)
    part = f" ({size_of(room.checkpoints)} of them for checkpoints)" if room.checkpoints else ""
    gc = f"; `gristmill store gc` would free {size_of(room.garbage)}" if room.garbage else ""
    yield f"Disk: about {size_of(room.needed)} needed{part}, {size_of(room.free)} free{gc}."
    if room.needed > room.free:
        yield "[bold red]The disk will be full before the run ends[/]: free space, or choose another store."


def told_of_compiling(lines: Sequence[PlannedStage]) -> Iterator[str]:
    """On a machine where no kernel has been compiled: no estimate holds that time."""
    kernels = Path(os.environ.get("NUMBA_CACHE_DIR") or cache_folder() / "kernels")
    if any(line.name in OF_DOCUMENTS and not line.hit for line in lines) and not any(kernels.rglob("*.nbi")):
        yield "Nothing is compiled on this machine yet: the first run takes about a minute longer."


def told_of_sources(profile: Profile) -> Iterator[str]:
    """The local files that the profile names as sources, which are there. Raises SourceError for those that are not."""
    named = [source for source in profile.download.sources if isinstance(source, FileSource)]
    told = []
    for source in named:
        count = len(find_files(source))
        name = escape(harmless(source.name))
        told.append(f"{name} {count:,} {'file' if count == 1 else 'files'}, {size_of(size(source))}")
    if told:
        yield f"Files of sources, all there: {'; '.join(told)}."


def told_of_filter(profile: Profile) -> Iterator[str]:
    """Where text is not judged as pages of the web, which a profile of files need not have asked for."""
    rules = profile.filter
    if rules and profile.pretrain and rules.preset == CLEAN and not any(getattr(rules, one) for one in HEURISTICS):
        yield "filter.preset is clean: no rules for pages of the web. Of those write `filter: {preset: web}`."


def told_of_runs(store: Store, lines: Sequence[PlannedStage]) -> Iterator[str]:
    """What other runs make now, and which of it a run of this plan would wait for."""
    keys = {line.name: line.payload.key() for line in lines if line.payload and not line.hit}
    held = ((name, locks.holder(store.local / "locks" / f"{name}-{key}")) for name, key in keys.items())
    same = {name: by for name, by in held if by}
    for record in running(store):
        if not record.working or record.process == os.getpid():
            continue
        whole = _whole(record.working)
        is_waited_for = same.get(whole) == f"process {record.process} on {record.host}"
        waits = ", which a run of this plan would wait for" if is_waited_for else ""
        if is_waited_for:
            del same[whole]
        stage, profile = (escape(harmless(name)) for name in (record.working, record.profile))
        yield f"{stage} is being made now by the run {record.id} of {profile}{waits}."
    for name, by in sorted(same.items()):
        yield f"{name} is being made now by {by}, which a run of this plan would wait for."


def _whole(stage: str) -> str:
    """The stage itself, or that which it is a part of."""
    known = STAGES.get(stage.partition(".")[0])
    return _whole(known.part_of) if known and known.part_of else stage


def told_of_resumes(store: Store, lines: Sequence[PlannedStage], steps: int | None) -> Iterator[str]:
    """Each training that goes on from a checkpoint; `steps` are those of pretraining."""
    for line in lines:
        if step := resumes_at(store, line):
            of = f" of {steps:,}" if steps and line.name == "pretrain" else ""
            yield f"{line.name} resumes at step {step:,}{of}."


def own_error(store: Store, profile: str) -> Iterator[str]:
    """How far the estimates of earlier runs were from what came: of the profile's last one, and of all stages."""
    ratios, last = list[float](), ""
    for record, _ in zip(history.records(store), range(LOOKED_AT), strict=False):
        if isinstance(record, StoreError):
            continue
        done, expected, took = record.planned
        times = [(record.estimates[name].seconds, record.stages[name].seconds) for name in done]
        ratios += [max(a, b) / min(a, b) for a, b in times if min(a, b) > 0 and max(a, b) >= LEAST]
        if done and not last and record.profile == profile:
            last = f"Last time: estimated {duration(expected)}, took {duration(took)} ({', '.join(done)})."
    if last:
        yield last
    if ratios:
        many = f"{len(ratios)} stages" if len(ratios) > 1 else "1 stage"
        yield f"Estimates so far were right within a factor of {median(ratios):.2f} for half of {many}."
