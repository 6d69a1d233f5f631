"""The parts of a stage in an estimate: which of them are stored, and how long they took.

For a stage that declares its parts (`@stage(parts=…)`) each is looked up by its config: one with other settings must be
made. For other stages the parts count as stored if the inputs are the same as before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from flows.estimates.planned_stage import PlannedStage
from storage.keys import KeyPayload
from storage.manifest import Manifest
from tasks.stage.config import StageConfig
from tasks.stage.decorator import STAGES, Stage

OUTSIDE = "source:"  # the prefix of inputs from outside the store
DOCUMENTS = "documents"
MOST_REUSED = 0.9  # of an artifact's inputs: with more, its seconds say nothing about the rest


def part_stage(name: str, earlier: Mapping[str, Manifest]) -> Stage:
    """The stage that makes a part of this name."""
    return STAGES[earlier[name].stage if name in earlier else name.partition(".")[0]]


def stored_parts(
    manifests: Mapping[str, Manifest],
    line: PlannedStage,
    earlier: Mapping[str, Manifest],
    wanted: Mapping[str, StageConfig],
) -> set[str]:
    """The `wanted` parts of a stage that are in the store. `earlier` are the parts of its last making."""
    if line.payload is None:
        return set()
    read = {part.payload.inputs.get(DOCUMENTS) for part in earlier.values()}  # repaired ones too
    stored: dict[str, dict[str, Manifest]] = {}
    for name, config in wanted.items():
        stage = part_stage(name, earlier)
        stored[name] = {
            where: each
            for where, each in manifests.items()
            if each.stage == stage.name and _is_by(stage, config, each) and _is_of(line.payload, read, each)
        }
    _drop_stale(line.name, stored)
    return {name for name, parts in stored.items() if parts and part_stage(name, earlier).name not in line.refresh}


def same_inputs(line: PlannedStage, earlier: Manifest) -> bool:
    """Whether a stage will read the same artifacts as before."""
    return line.payload is not None and _inside(line.payload) == _inside(earlier.payload)


def seconds_of(made: Manifest) -> float:
    """The seconds of making an artifact, if it had reused nothing of an earlier one and compiled nothing."""
    reused = min(float(made.facts.get("share_reused", 0)), MOST_REUSED)
    return max(0.0, float(made.facts.get("seconds", 0)) - _compiling(made)) / (1 - reused)


def own_seconds(made: Manifest, parts: Iterable[Manifest]) -> float:
    """The seconds that a stage spent on itself, without the parts that were made meanwhile."""
    within = [part for part in parts if _within(part, made)]
    return max(0.0, seconds_of(made) - (_span(within) - sum(map(_compiling, within))))


def _compiling(made: Manifest) -> float:
    """Seconds of compiling kernels, as on a machine's first run."""
    return float(made.facts.get("compiling_seconds", 0))


def parts_of(manifests: Mapping[str, Manifest], made: Manifest) -> dict[str, Manifest]:
    """The parts of an artifact that are still stored, by name."""
    uses = {name: manifests[place.location] for name, place in made.uses.items() if place.location in manifests}
    return {name: part for name, part in uses.items() if part.stage in STAGES and STAGES[part.stage].part_of}


def _is_by(stage: Stage, config: StageConfig, made: Manifest) -> bool:
    """Whether an artifact was made with this config and the present inputs from outside the store."""
    outside = {f"{OUTSIDE}{name}": digest for name, digest in (stage.sources(config) if stage.sources else {}).items()}
    before = {name: digest for name, digest in made.payload.inputs.items() if name.startswith(OUTSIDE)}
    alike = made.payload.config == config.model_dump(mode="json") and made.payload.version == stage.version
    return alike and outside == before


def _is_of(whole: KeyPayload, documents: Collection[str | None], made: Manifest) -> bool:
    """Whether an artifact was made from the whole stage's inputs of the same names, or from these documents."""
    inputs = made.payload.inputs
    alike = (digest == whole.inputs.get(name, digest) for name, digest in inputs.items() if name != DOCUMENTS)
    return all(alike) and inputs.get(DOCUMENTS) in {whole.inputs.get(DOCUMENTS), *documents, None}


def _drop_stale(whole: str, stored: dict[str, dict[str, Manifest]]) -> None:
    """Drop what was made from a part that the whole will no longer obtain."""

    def is_stale(part: Manifest) -> bool:
        places = [ref.location for ref in part.origins.values()]
        parts = [place for place in places if (stage := STAGES.get(place.partition("/")[0])) and stage.part_of == whole]
        return not all(any(place in named for named in stored.values()) for place in parts)

    # Dropping one part can make another stale
    while any(is_stale(part) for named in stored.values() for part in named.values()):
        for name, named in stored.items():
            stored[name] = {where: part for where, part in named.items() if not is_stale(part)}


def _inside(payload: KeyPayload) -> dict[str, str]:
    """The inputs that are artifacts."""
    return {name: digest for name, digest in payload.inputs.items() if not name.startswith(OUTSIDE)}


def _span(parts: Iterable[Manifest]) -> float:
    """Seconds in which at least one of these was being made: several are made at once."""
    total, reached = 0.0, float("-inf")
    times = [(_made(part).timestamp(), float(part.facts.get("seconds", 0))) for part in parts]
    for began, ended in sorted((made - seconds, made) for made, seconds in times):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total


def _within(part: Manifest, whole: Manifest) -> bool:
    """Whether a part was made during the making of the whole, including killed attempts."""
    lasted = timedelta(seconds=float(whole.facts.get("seconds", 0)) + 1)
    begun = whole.facts.get("first_begun", (_made(whole) - lasted).timestamp())
    return bool(begun <= _made(part).timestamp() <= _made(whole).timestamp())


def _made(manifest: Manifest) -> datetime:
    return datetime.fromisoformat(manifest.created)
