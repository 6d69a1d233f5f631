"""The parts of a stage in an estimate: which of them its next making will find in the store, and what they took.

A stage that says which parts it will obtain (`@stage(parts=…)`) has each looked up by its config: one that another
setting measured is work. Of other stages the parts are taken to be there where the inputs are the same as before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from flows.estimates.planned_stage import PlannedStage
from storage.keys import KeyPayload
from storage.manifest import Manifest
from tasks.stage.config import StageConfig
from tasks.stage.decorator import STAGES, Stage

OUTSIDE = "source:"  # begins what an artifact read from outside the store, among its inputs
DOCUMENTS = "documents"
MOST_REUSED = 0.9  # of what an artifact is made of, else its seconds say nothing of the rest


def part_stage(name: str, earlier: Mapping[str, Manifest]) -> Stage:
    """The stage that makes a part of this name."""
    return STAGES[earlier[name].stage if name in earlier else name.partition(".")[0]]


def parts_there(
    manifests: Mapping[str, Manifest],
    line: PlannedStage,
    earlier: Mapping[str, Manifest],
    wanted: Mapping[str, StageConfig],
) -> set[str]:
    """Those of the parts that a stage wants which its next making will find in the store. `earlier` are those of its
    last making."""
    if line.payload is None:
        return set()
    read = {part.payload.inputs.get(DOCUMENTS) for part in earlier.values()}  # repaired ones too
    there: dict[str, dict[str, Manifest]] = {}
    for name, config in wanted.items():
        stage = part_stage(name, earlier)
        there[name] = {
            where: each
            for where, each in manifests.items()
            if each.stage == stage.name and _is_by(stage, config, each) and _is_of(line.payload, read, each)
        }
    _drop_stale(line.name, there)
    return {name for name, found in there.items() if found and part_stage(name, earlier).name not in line.refresh}


def same_inputs(line: PlannedStage, earlier: Manifest) -> bool:
    """Whether a stage will read the artifacts that it read before."""
    return line.payload is not None and _inside(line.payload) == _inside(earlier.payload)


def seconds_of(made: Manifest) -> float:
    """What making an artifact would have taken, had it taken over nothing of an earlier one, and compiled nothing."""
    reused = min(float(made.facts.get("share_reused", 0)), MOST_REUSED)
    return max(0.0, float(made.facts.get("seconds", 0)) - _compiling(made)) / (1 - reused)


def own_seconds(made: Manifest, parts: Iterable[Manifest]) -> float:
    """Those that a stage spent on itself, and not on the parts that were made while it was."""
    within = [part for part in parts if _within(part, made)]
    return max(0.0, seconds_of(made) - (_span(within) - sum(map(_compiling, within))))


def _compiling(made: Manifest) -> float:
    """Seconds in which kernels were compiled, as on the first run of a machine."""
    return float(made.facts.get("compiling_seconds", 0))


def parts_of(manifests: Mapping[str, Manifest], made: Manifest) -> dict[str, Manifest]:
    """The parts of an artifact by their names, as far as they are there yet."""
    found = {name: manifests[place.location] for name, place in made.uses.items() if place.location in manifests}
    return {name: part for name, part in found.items() if part.stage in STAGES and STAGES[part.stage].part_of}


def _is_by(stage: Stage, config: StageConfig, made: Manifest) -> bool:
    """Whether an artifact was made by this config, with what now lies outside the store."""
    outside = {f"{OUTSIDE}{name}": digest for name, digest in (stage.sources(config) if stage.sources else {}).items()}
    before = {name: digest for name, digest in made.payload.inputs.items() if name.startswith(OUTSIDE)}
    alike = made.payload.config == config.model_dump(mode="json") and made.payload.version == stage.version
    return alike and outside == before


def _is_of(whole: KeyPayload, documents: Collection[str | None], made: Manifest) -> bool:
    """Whether an artifact was made of the inputs that the whole stage has by the same names, or of these documents."""
    inputs = made.payload.inputs
    alike = (digest == whole.inputs.get(name, digest) for name, digest in inputs.items() if name != DOCUMENTS)
    return all(alike) and inputs.get(DOCUMENTS) in {whole.inputs.get(DOCUMENTS), *documents, None}


def _drop_stale(whole: str, there: dict[str, dict[str, Manifest]]) -> None:
    """Drop what was made of a part of the whole that it will not obtain any more."""

    def is_stale(part: Manifest) -> bool:
        places = [ref.location for ref in part.origins.values()]
        parts = [place for place in places if (stage := STAGES.get(place.partition("/")[0])) and stage.part_of == whole]
        return not all(any(place in found for found in there.values()) for place in parts)

    while any(is_stale(part) for found in there.values() for part in found.values()):
        for name, found in there.items():
            there[name] = {where: part for where, part in found.items() if not is_stale(part)}


def _inside(payload: KeyPayload) -> dict[str, str]:
    """The inputs that are artifacts."""
    return {name: digest for name, digest in payload.inputs.items() if not name.startswith(OUTSIDE)}


def _span(parts: Iterable[Manifest]) -> float:
    """Seconds in which at least one of these was made: several are made at once."""
    total, reached = 0.0, float("-inf")
    times = [(_made(part).timestamp(), float(part.facts.get("seconds", 0))) for part in parts]
    for began, ended in sorted((made - seconds, made) for made, seconds in times):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total


def _within(part: Manifest, whole: Manifest) -> bool:
    """Whether a part was made while the whole was, in an attempt at it that was killed too."""
    lasted = timedelta(seconds=float(whole.facts.get("seconds", 0)) + 1)
    begun = whole.facts.get("first_begun", (_made(whole) - lasted).timestamp())
    return bool(begun <= _made(part).timestamp() <= _made(whole).timestamp())


def _made(manifest: Manifest) -> datetime:
    return datetime.fromisoformat(manifest.created)
