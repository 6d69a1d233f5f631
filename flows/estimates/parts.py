"""The parts of a stage in an estimate: which of them its next making will find in the store, and what the others take.

A stage that says which parts it will obtain (`@stage(parts=…)`) has each looked up by its config: one that another
setting measured is work. Of other stages the parts are taken to be there where the inputs are the same as before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from flows.estimates.planned import PlannedStage
from storage.errors import DamagedArtifact
from storage.keys import KeyPayload, differences
from storage.manifest import Manifest
from storage.store import Store
from tasks.stage.config import StageConfig
from tasks.stage.decorator import STAGES, Stage

OUTSIDE = "source:"  # begins what an artifact read from outside the store, among its inputs
DOCUMENTS = "documents"
MOST_REUSED = 0.9  # of what an artifact is made of, else its seconds say nothing of the rest


class Parts(NamedTuple):
    """Seconds of a stage's next making, if it had the inputs of the earlier one."""

    own: float  # without its parts
    missing: dict[str, float]  # of those that are not in the store, by name
    unknown: list[str]  # those of them that no run has measured
    any_there: bool


def parts_of(store: Store, line: PlannedStage, earlier: Manifest, ratio: float) -> Parts:
    """Of a stage that must be made and was made before, of which there is now `ratio` times the work."""
    known = _known(store, earlier)
    within = [part for part in known.values() if _within(part, earlier)]
    own = max(0.0, anew_seconds(earlier) - _span(within))
    same = line.payload is not None and _inside(line.payload) == _inside(earlier.payload)
    wanted = STAGES[line.name].parts
    if wanted is None:
        times = max(0.0, ratio - 1) if same else 1.0  # of the same inputs, what was asked before is there
        first = [part.stage for part in known.values()][:1]
        return Parts(own, dict.fromkeys(first * bool(times), times * _span(known.values())), [], same and bool(known))
    return _looked_up(store, line, known, wanted(line.config), own, used=earlier.uses, same=same)


def _looked_up(
    store: Store, line: PlannedStage, known: Mapping[str, Manifest], wanted: Mapping[str, StageConfig], own: float, *,
    used: Collection[str], same: bool,
) -> Parts:  # fmt: skip
    stages = {name: STAGES[known[name].stage if name in known else name.partition(".")[0]] for name in wanted}
    made = {stage: dict(store.manifests(stage)) for stage in {stage.name for stage in stages.values()}}
    there: dict[str, dict[str, Manifest]] = {name: {} for name in wanted}
    if same and line.payload is not None:
        read = {part.payload.inputs.get(DOCUMENTS) for part in known.values()}  # repaired ones too
        for name, config in wanted.items():
            stage = stages[name]
            there[name] = {
                where: each
                for where, each in made[stage.name].items()
                if _is_by(stage, config, each) and _is_of(line.payload, read, each)
            }
        _drop_stale(line.name, there)
    missing, unknown = {}, []
    for name, config in wanted.items():
        before = known.get(name) or _nearest(made[stages[name].name].values(), config)
        if there[name] and stages[name].name not in line.refresh:
            continue
        if before is None and name not in used:  # of one that was used and is gone the whole has the time
            unknown.append(name)
        elif before is not None:
            missing[name] = anew_seconds(before)
    return Parts(own, missing, unknown, any(found and name not in missing for name, found in there.items()))


def anew_seconds(made: Manifest) -> float:
    """What making an artifact would have taken, had it taken over nothing of an earlier one."""
    reused = min(float(made.facts.get("share_reused", 0)), MOST_REUSED)
    return float(made.facts.get("seconds", 0)) / (1 - reused)


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


def _nearest(made: Iterable[Manifest], config: StageConfig) -> Manifest | None:
    wanted = config.model_dump(mode="json")
    return min(made, key=lambda found: len(differences(found.payload.config, wanted)), default=None)


def _inside(payload: KeyPayload) -> dict[str, str]:
    """The inputs that are artifacts."""
    return {name: digest for name, digest in payload.inputs.items() if not name.startswith(OUTSIDE)}


def _known(store: Store, manifest: Manifest) -> dict[str, Manifest]:
    """The parts of an artifact, as far as they are there yet."""
    found = {}
    for name, place in manifest.uses.items():
        with suppress(DamagedArtifact):
            part = store.manifest(place.location)
            if part and part.stage in STAGES and STAGES[part.stage].part_of:
                found[name] = part
    return found


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
