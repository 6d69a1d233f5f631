"""A plan's notes beside its stages: sources, kernels to compile, other runs, resuming trainings, the accuracy of
earlier estimates, and the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.markup import escape

from flows.estimates.arithmetic import TrainingPlan
from flows.estimates.planned_stage import PlannedStage
from flows.estimates.stages import resumes_at
from flows.estimates.work import OF_DOCUMENTS
from flows.provenance import TOKENS
from profiles.load import CLEAN
from profiles.schema import Profile
from storage.errors import ConfigError, StoreError, harmless
from storage.files import locks
from storage.files.cache import cache_folder
from storage.files.disk import existing
from storage.maintain import find_garbage
from storage.runs import history
from storage.runs.alive import running
from storage.store import Store
from storage.units import duration, size_of
from tasks.checks.extras import lacking
from tasks.download.config import DownloadConfig, LocalSource
from tasks.download.sources.files import find_files, size
from tasks.download.stage import portions_known
from tasks.filter.presets import HEURISTICS
from tasks.stage.decorator import STAGES
from tasks.stage.history import find_earlier

LOOKED_AT = 50  # records
LEAST = 1.0  # seconds: shorter stages don't count for the accuracy


class Room(NamedTuple):
    """Bytes on the disk of the store, or of a bucket's local side."""

    needed: int
    checkpoints: int  # of these
    free: int
    garbage: int


def room_of(
    store: Store, lines: Sequence[PlannedStage], sizes: Mapping[str, int], training: TrainingPlan | None
) -> Room:
    """The room that a run needs, by the `sizes` of artifacts and the arithmetic of checkpoints."""
    missing = [line for line in lines if not line.hit]
    artifacts = sum(sizes.get(line.name, 0) for line in missing)
    trains = training is not None and any(line.name == "pretrain" for line in missing)
    checkpoints = training.disk if training is not None and trains else 0
    free = shutil.disk_usage(existing(store.local)).free
    return Room(artifacts + checkpoints, checkpoints, free, _garbage(store, missing))


def _garbage(store: Store, missing: Sequence[PlannedStage]) -> int:
    """Bytes that a collection would free, without the work that these stages would resume."""
    garbage = find_garbage(store, 1)
    keys = [(line.name, line.payload.key()) for line in missing if line.payload]
    folders, places = {f"{name}-{key}" for name, key in keys}, {f"{name}/{key}" for name, key in keys}
    resumed = sum(size for path, size in garbage.workspaces.items() if path.name in folders)
    return garbage.size - resumed - sum(size for place, size in garbage.checkpoints.items() if place in places)


def disk_notes(
    store: Store, lines: Sequence[PlannedStage], sizes: Mapping[str, int], training: TrainingPlan | None
) -> Iterator[str]:
    """The disk that the run needs, and a warning if that doesn't fit."""
    if all(line.hit for line in lines):
        return
    room = room_of(store, lines, sizes, training)
    part = f" ({size_of(room.checkpoints)} of them for checkpoints)" if room.checkpoints else ""
    gc = f" (`gristmill store gc` would free {size_of(room.garbage)})" if room.garbage else ""
    yield f"Disk: about {size_of(room.needed)} needed{part}, {size_of(room.free)} free{gc}."
    if room.needed > room.free:
        yield "[bold red]The disk will be full before the run ends[/]: free space, or choose another store."


def compile_notes(lines: Sequence[PlannedStage]) -> Iterator[str]:
    """A note on a machine without compiled kernels: estimates don't include that time."""
    kernels = Path(os.environ.get("NUMBA_CACHE_DIR") or cache_folder() / "kernels")
    if any(line.name in OF_DOCUMENTS and not line.hit for line in lines) and not any(kernels.rglob("*.nbi")):
        yield "No kernels are compiled on this machine yet: the first run takes about a minute longer."


def source_notes(profile: Profile) -> Iterator[str]:
    """The number and size of the profile's local files. Raises SourceError if any are missing."""
    named = [source for source in profile.download.sources if isinstance(source, LocalSource)]
    counts = []
    for source in named:
        count = len(find_files(source))
        name = escape(harmless(source.name))
        counts.append(f"{name} {count:,} {'file' if count == 1 else 'files'}, {size_of(size(source))}")
    if counts:
        yield f"Source files: {'; '.join(counts)}."


def reuse_notes(store: Store, lines: Sequence[PlannedStage]) -> Iterator[str]:
    """What a download takes of an earlier one, and the stages after it with it. Raises SourceError."""
    for line in lines:
        if line.name != "download" or line.hit or line.payload is None or line.name in line.refresh:
            continue
        assert isinstance(line.config, DownloadConfig)
        source = STAGES[line.name].source
        found = portions_known(line.config, partial(find_earlier, store, line.payload, source, lambda _: None))
        if found.known:
            new = found.total - found.known
            yield (
                f"Of {found.total:,} portions of files {new:,} {'is' if new == 1 else 'are'} read, and the others "
                "taken from an earlier run. Stages that work shard by shard take theirs too, and need less time than "
                "shown."
            )


def repeat_notes(profile: Profile, lines: Sequence[PlannedStage], training: TrainingPlan | None) -> Iterator[str]:
    """The sources that a pretraining will read more than once, as soon as the store has its tokens."""
    made = {line.name: line.manifest for line in lines if line.hit}
    found = None if "pretrain" in made else made.get("tokenize")
    rows = found.counts.get("tables", {}).get(TOKENS, []) if found else []
    config = profile.pretrain
    if config is None or training is None or not rows or lacking("models"):  # the loader imports torch
        return
    from tasks.pretrain.loader.epochs import check_epochs, planned, repeats
    from tasks.pretrain.loader.windows import ALL

    tokens = {row["source"]: row["tokens"] for row in rows if row["split"] == "train" and row["source"] != ALL}
    context = config.sequence or training.shape.context
    try:
        readings = planned(config, config.total_steps(replace(training.shape, context=context)), context, tokens)
        check_epochs(config, readings)
    except ConfigError as error:
        yield f"[yellow]{escape(harmless(str(error)))}[/]"
    else:
        yield from (escape(harmless(sentence)) for sentence in repeats(readings))


def filter_notes(profile: Profile) -> Iterator[str]:
    """A note if the filter applies no rules for web pages, which a profile of files gets by default."""
    rules = profile.filter
    if rules and profile.pretrain and rules.preset == CLEAN and not any(getattr(rules, one) for one in HEURISTICS):
        yield "filter.preset is clean: no rules for web pages. To apply them, write `filter: {preset: web}`."


def run_notes(store: Store, lines: Sequence[PlannedStage]) -> Iterator[str]:
    """The stages that other runs are making, and those that a run of this plan would wait for."""
    keys = {line.name: line.payload.key() for line in lines if line.payload and not line.hit}
    held = ((name, locks.holder(store.local / "locks" / f"{name}-{key}")) for name, key in keys.items())
    same = {name: by for name, by in held if by}
    for record in running(store):
        if not record.working or record.process == os.getpid():
            continue
        whole = _whole(record.working)
        is_waited_for = same.get(whole) == f"process {record.process} on {record.host}"
        waits = ": a run of this plan would wait for it" if is_waited_for else ""
        if is_waited_for:
            del same[whole]
        stage, profile = (escape(harmless(name)) for name in (record.working, record.profile))
        yield f"Run {record.id} of {profile} is making {stage} now{waits}."
    for name, by in sorted(same.items()):
        yield f"{by[0].upper()}{by[1:]} is making {name} now: a run of this plan would wait for it."


def _whole(stage: str) -> str:
    """The stage itself, or the stage that it is a part of."""
    known = STAGES.get(stage.partition(".")[0])
    return _whole(known.part_of) if known and known.part_of else stage


def resume_notes(store: Store, lines: Sequence[PlannedStage], steps: int | None) -> Iterator[str]:
    """Each training that resumes from a checkpoint. `steps` are those of pretraining."""
    for line in lines:
        if step := resumes_at(store, line):
            of = f" of {steps:,}" if steps and line.name == "pretrain" else ""
            yield f"{line.name} resumes at step {step:,}{of}."


def accuracy_notes(store: Store, profile: str) -> Iterator[str]:
    """The accuracy of earlier estimates: of the profile's last run, and of all stages."""
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
        yield f"Half of the estimates of {many} so far were right within a factor of {median(ratios):.2f}."
