"""Plans a run without running it: the same wiring, with every stage asked instead of run.

A stage after a miss can't know its key, which holds its inputs' digests, so it is a miss that *waits*. Sizes and times
are guessed from the nearest earlier artifact of the stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from flows.early import check_known_adapters, check_sources
from flows.estimates.planned_stage import Pending, PlannedStage
from flows.estimates.sources import Rows, rows_of
from flows.pipeline import stages
from flows.session import session_of
from profiles.schema import Profile
from storage import refs
from storage.artifact import Artifact
from storage.errors import DamagedArtifact
from storage.keys import differences
from storage.manifest import Manifest
from storage.shards.documents import count_rows
from storage.store import Store
from tasks.stage.config import StageConfig
from tasks.stage.history import explain_miss, nearest
from tasks.stage.protocol import AnyStage, Forecast, Input
from tasks.stage.session import Session, open_session

Bring = Callable[[], Mapping[str, Rows]]  # the rows of the sources by role, counted only if a forecast needs them


def plan(profile: Profile, session: Session | None = None) -> list[PlannedStage]:
    """Every stage of the pipeline in order, as HIT or MISS with the reason. Makes nothing.

    A `session` (the profile's own by default) says where to end and what to rebuild. Raises ConfigError for settings of
    the runtime that a stage can't honour and for a stage that has nothing to read, SourceError for files that lack what
    is read from them.
    """
    session = session or session_of(profile)
    lines: list[PlannedStage] = []

    def ask(stage: AnyStage, config: StageConfig, inputs: Sequence[Input]) -> Artifact:
        line, artifact = _ask(session, stage, config, tuple(inputs), lambda: rows_of(profile.download))
        lines.append(replace(line, refresh=frozenset(session.refresh)))
        return artifact

    with open_session(replace(session, call=ask)):
        stages(profile)
        check_known_adapters(profile, {line.name for line in lines if not line.hit})
    check_sources(profile, lines)
    return lines


def _ask(
    session: Session,
    stage: AnyStage,
    config: StageConfig,
    inputs: tuple[Input, ...],
    rows: Callable[[], Mapping[str, Rows]],
) -> tuple[PlannedStage, Artifact]:
    """The plan of one stage and its artifact, a pending one if it must be made. `rows` are those that the sources will
    bring, by role."""
    pending = Pending(folder=Path(), digest="", location=stage.name)
    stage.check_runtime(config, session.runtime)
    entries = refs.history(session.store, f"{session.profile}/{stage.name}")  # a damaged one fails here, before work
    waiting = sorted({artifact.location for artifact in stage.named(inputs).values() if isinstance(artifact, Pending)})
    if waiting:
        stage.fingerprints(config)  # a missing source fails the plan, not the run hours later
        guess = _readable(session.store, entries[-1].location) if entries else _like(session.store, stage, config)
        waits = PlannedStage(stage.name, False, f"waits for {', '.join(waiting)}", None, guess, inputs, config)
        return replace(waits, forecast=_forecast(session, stage, config, inputs, rows)), pending
    payload = stage.payload(config, inputs)
    found = None if stage.name in session.refresh else session.store.find(stage.name, payload.key())
    if found is not None:
        adopted = found.manifest.adopted if found.manifest else ""
        return PlannedStage(stage.name, True, adopted, payload, found.manifest, inputs, config), found
    why = explain_miss(session.store, payload, stage.name in session.refresh, session.profile)
    near = nearest(session.store, payload)
    forecast = _forecast(session, stage, config, inputs, rows)
    return PlannedStage(stage.name, False, why, payload, near, inputs, config, forecast), pending


def _forecast(
    session: Session, stage: AnyStage, config: StageConfig, inputs: tuple[Input, ...], rows: Bring
) -> Forecast | None:
    """The needs of a stage that must be made, or None if its documents can't be counted yet and no source says how many
    there are."""
    if stage.forecast is None:
        return None
    documents = inputs[0]
    assert isinstance(documents, Artifact)
    if isinstance(documents, Pending):
        number = rows().get("documents", Rows()).number
    else:
        number = sum(count_rows(path) for path in documents.files("*.parquet"))
    return None if number is None else stage.forecast(config, round(number), session.runtime)


def _like(store: Store, stage: AnyStage, config: StageConfig) -> Manifest | None:
    """For a stage that this profile never made: the artifact whose config differs least."""
    wanted = config.model_dump(mode="json")
    known = [manifest for _, manifest in store.manifests(stage.name)]
    return min(known, key=lambda found: len(differences(found.payload.config, wanted)), default=None)


def _readable(store: Store, location: str) -> Manifest | None:
    """A manifest to guess from, or None if it is damaged."""
    with suppress(DamagedArtifact):
        return store.manifest(location)
    return None
