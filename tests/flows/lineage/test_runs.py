"""What a catalogue learns of runs: made, taken from the store, failed, stopped, vanished, waiting, made elsewhere."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from flows.lineage.datasets import namespace_of
from flows.pipeline import stages
from flows.records.recorder import Asked
from flows.session import Run, recorded, session_of
from profiles.schema import Profile
from storage.errors import SourceError
from storage.runs import history
from storage.runs.record import RunRecord, Traced
from tasks.download import download
from tasks.stage.config import StageConfig
from tasks.stage.protocol import AnyStage, Input
from tasks.stage.session import Session, open_session
from tests.flows.commands.test_cli import publish
from tests.flows.commands.test_runs import profile_of, run_stages
from tests.flows.lineage.receiver import check_life_cycle

OWN = Path("flows/lineage/facets-1-0-0.json")


@pytest.fixture(autouse=True)
def client() -> None:
    pytest.importorskip("openlineage", reason="needs the extra openlineage")


def profile_with_lineage(folder: Path) -> Profile:
    return profile_of(folder, f"runtime.tracking.openlineage.file={folder / 'events.jsonl'}", "filter=null")


def events_of(folder: Path) -> list[dict[str, Any]]:
    file = folder / "events.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def kinds(events: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["eventType"], event["job"]["name"]) for event in events]


def run(profile: Profile) -> Any:
    """A recorded run of a profile."""
    return recorded(profile, session_of(profile), Asked("smoke"))


def end(profile: Profile, begun: Sequence[str], error: BaseException) -> None:
    """A run that begins stages and ends by an error."""
    with run(profile) as going:
        for stage in begun:
            going.session.observer.started(stage, "it was never made")
        raise error


def test_a_stage_that_is_made_is_a_run_below_that_of_the_profile(tmp_path: Path) -> None:
    profile = profile_with_lineage(tmp_path)
    record = run_stages(profile, "download")
    events = events_of(tmp_path)
    check_life_cycle(events)
    whole, stage = "smoke", "smoke.download"
    assert kinds(events) == [("START", whole), ("START", stage), ("COMPLETE", stage), ("COMPLETE", whole)]
    made = events[2]
    (source,) = made["inputs"]
    assert (source["namespace"], source["name"]) == ("file", str(tmp_path / "notes.jsonl"))
    (dataset,) = made["outputs"]
    store = session_of(profile).store
    assert (dataset["namespace"], dataset["name"]) == (namespace_of(store), "smoke/download")
    facets, digest = dataset["facets"], record.stages["download"].digest
    assert facets["version"]["datasetVersion"] == digest
    assert {"name": "documents", "type": "struct"}.items() <= facets["schema"]["fields"][0].items()
    assert "text" in [column["name"] for column in facets["schema"]["fields"][0]["fields"]]
    manifest = store.manifest(record.stages["download"].location)
    assert manifest is not None
    statistics = dataset["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"]) == (1, manifest.size)
    assert (tmp_path / "store" / "artifacts").as_uri() in facets["gristmill_artifact"]["address"]
    assert record.traced == Traced(run=events[0]["run"]["runId"])
    assert events[0]["eventTime"] == record.started


def test_a_run_that_takes_all_from_the_store_claims_to_have_made_nothing(tmp_path: Path) -> None:
    profile = profile_with_lineage(tmp_path)
    run_stages(profile, "download")
    seen = len(events_of(tmp_path))
    record = run_stages(profile, "download")
    events = events_of(tmp_path)[seen:]
    assert kinds(events) == [("START", "smoke"), ("COMPLETE", "smoke")]
    facet = events[1]["run"]["facets"]["gristmill_run"]
    assert facet["record"] == record.id
    assert [(stage["name"], stage["fromStore"]) for stage in facet["stages"]] == [("download", True)]


def test_artifacts_are_named_by_their_refs_and_those_made_together_by_their_places(tmp_path: Path) -> None:
    profile = profile_with_lineage(tmp_path)
    store = session_of(profile).store
    for text in ("one", "two"):
        publish(store, "score", {"score.json": text.encode()}, of=text)
    stored, made = (store.get(location) for location in store.locations())
    with run(profile) as going:
        arm = replace(going.session, profile="smoke-seed-1", names={"dpo": "dpo seed 1"})
        arm.started("dpo", "it was never made")
        arm.finished("dpo", stored, cached=False, seconds=1)
        going.session.observer.started("score", "it was never made")
        going.session.gathered("score", [(stored, True), (made, False)], seconds=1, waited=0)
    events = events_of(tmp_path)
    outputs = [
        [dataset["name"] for dataset in event["outputs"]] for event in events if event["eventType"] == "COMPLETE"
    ]
    assert outputs == [["smoke-seed-1/dpo"], [made.location], []]
    listed = events[-1]["run"]["facets"]["gristmill_run"]["stages"][1:]
    assert [(one["location"], one["fromStore"]) for one in listed] == [(stored.location, True), (made.location, False)]


def test_facets_of_our_own_have_our_schema(tmp_path: Path) -> None:
    run_stages(profile_with_lineage(tmp_path), "download")
    schema, found = json.loads(OWN.read_text()), set()
    for event in events_of(tmp_path):
        datasets = [*event["inputs"], *event["outputs"]]
        for facets in (event["run"]["facets"], event["job"]["facets"], *(one["facets"] for one in datasets)):
            for name, facet in facets.items():
                address, _, path = facet["_schemaURL"].partition("#/$defs/")
                assert facet["_producer"] == event["producer"]
                assert name.startswith("gristmill_") == (address == schema["$id"])
                if address == schema["$id"]:
                    found.add(path)
                    Draft202012Validator(schema["$defs"][path]).validate(facet)
    assert found == set(schema["$defs"])


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            SourceError("The server https://me:secret-word@host is away.\nRow: 01234", "Wait."),
            "FAIL",
            "***@host is away.",
        ),
        (ValueError("Jane Doe, 5 Long Street"), "FAIL", "ValueError"),
        (KeyboardInterrupt(), "ABORT", ""),
        (SystemExit(143), "ABORT", ""),
    ],
)
def test_a_run_that_fails_or_is_stopped_ends_its_open_stages_first(
    tmp_path: Path, error: BaseException, kind: str, message: str
) -> None:
    with pytest.raises(type(error)):
        end(profile_with_lineage(tmp_path), ["dedup", "sketches", "sketches"], error)  # one is retried
    events = events_of(tmp_path)
    check_life_cycle(events)
    begun, ended = ["smoke", "smoke.dedup", "smoke.sketches"], ["smoke.sketches", "smoke.dedup", "smoke"]
    assert kinds(events) == [*(("START", name) for name in begun), *((kind, name) for name in ended)]
    assert events[2]["run"]["facets"]["parent"]["job"]["name"] == "smoke.dedup"
    for event in events[3:]:
        said = event["run"]["facets"].get("errorMessage", {}).get("message", "")
        assert said.endswith(message)
        assert ("secret" not in said, "Row" not in said, bool(said)) == (True, True, bool(message))


def test_a_run_that_found_nothing_to_do_is_no_event(tmp_path: Path) -> None:
    with run(profile_with_lineage(tmp_path)):
        pass
    assert not events_of(tmp_path)


def test_the_next_run_ends_one_that_vanished_once(tmp_path: Path) -> None:
    profile = profile_with_lineage(tmp_path)
    run_stages(profile, "download")
    store = session_of(profile).store
    gone = history.find(store, "last").model_copy(
        update={
            "id": "2026-01-01T00-00-00-000000",
            "state": "running",
            "ended": None,
            "traced": Traced(run=str(uuid.uuid4()), open={"dedup": "", "sketches": "dedup"}),
        }
    )
    elsewhere = {**gone.runtime, "tracking": {"openlineage": {"file": "/another"}}}
    history.write(store, gone)
    history.write(store, gone.model_copy(update={"id": "2026-01-01T00-00-00-000001", "runtime": elsewhere}))
    seen = len(events_of(tmp_path))
    for _ in range(2):
        run_stages(profile, "download")
    events = events_of(tmp_path)[seen:]
    names = ["smoke.sketches", "smoke.dedup", "smoke"]
    assert kinds(events) == [*(("FAIL", name) for name in names), *2 * [("START", "smoke"), ("COMPLETE", "smoke")]]
    assert events[2]["run"]["runId"] == (gone.traced or Traced(run="")).run
    assert "without a word" in events[0]["run"]["facets"]["errorMessage"]["message"]


def test_a_run_that_waited_for_a_person_goes_on_as_the_same_run(tmp_path: Path) -> None:
    from prefect.exceptions import Pause
    from prefect.states import Suspended

    profile = profile_with_lineage(tmp_path)
    with pytest.raises(Pause):
        end(profile, ["download"], Pause(state=Suspended(message="waits for Jane")))
    waited = history.find(session_of(profile).store, "last")
    with run(profile) as going:
        going.record.waited = waited
        materialize(going, profile)
    events = events_of(tmp_path)
    check_life_cycle(events)
    (id,) = {event["run"]["runId"] for event in events if event["job"]["name"] == "smoke"}
    assert id == (waited.traced or Traced(run="")).run
    assert [kind for kind, name in kinds(events) if name == "smoke"] == ["START", "RUNNING", "COMPLETE"]


def materialize(going: Run, profile: Profile) -> None:
    with open_session(going.session):
        download.materialize(profile.download, [])


def test_a_stage_that_a_work_pool_makes_is_one_run(tmp_path: Path) -> None:
    profile = profile_with_lineage(tmp_path)
    session = session_of(profile, "download")

    def make(stage: AnyStage, key: str, config: StageConfig, inputs: Sequence[Input], refresh: bool) -> str:
        with open_session(Session(session.store, profile.runtime, profile.name)):  # as flows/pools/worker.py has it
            return stage.materialize(config, inputs)[0].location

    def call(stage: AnyStage, config: StageConfig, inputs: Sequence[Input]) -> Any:
        return stage.materialize(config, inputs)[0]

    away = replace(session, call=call, elsewhere=lambda name: make)
    with recorded(profile, away, Asked("smoke", (), "download")) as going, open_session(going.session):
        stages(profile)
    events = events_of(tmp_path)
    check_life_cycle(events)
    assert [kind for kind, name in kinds(events) if name == "smoke.download"] == ["START", "COMPLETE"]
    assert events[2]["outputs"]


def test_stages_that_are_made_at_once_are_no_parts_of_each_other(tmp_path: Path) -> None:
    with run(profile_with_lineage(tmp_path)) as going, ThreadPoolExecutor(2) as pool:
        started, both = going.session.observer.started, threading.Barrier(2)

        def make(seed: str) -> None:
            started(f"dpo {seed}", "it was never made")
            both.wait()
            started(f"reference {seed}", "it was never made")

        assert [*pool.map(make, ("1", "2"))] == [None, None]
    events = events_of(tmp_path)
    begun = [event for event in events if event["eventType"] == "START"][1:]
    parents = {event["job"]["name"]: event["run"]["facets"]["parent"]["job"]["name"] for event in begun}
    own = {f"smoke.reference {seed}": f"smoke.dpo {seed}" for seed in "12"}
    assert parents == {**own, "smoke.dpo 1": "smoke", "smoke.dpo 2": "smoke"}
    assert all("documentation" in event["job"]["facets"] for event in begun)


def test_without_a_catalogue_nothing_is_noted(tmp_path: Path) -> None:
    record: RunRecord = run_stages(profile_of(tmp_path), "download", "filter=null")
    assert record.traced is None
