"""Estimates of a plan: earlier runs, scaled by the work, less what a checkpoint has, and compared with what came."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flows.estimates.planned import PlannedStage
from flows.estimates.room import last_time, room_of, told_of_resumes
from flows.estimates.stages import WITHOUT_START, estimates, resumes_at
from flows.estimates.work import growth, training_of
from flows.plan import plan
from flows.session import session_of
from models.presets import count_parameters, derive
from profiles.load import load
from profiles.schema import Profile
from storage import refs
from storage.digests import FileEntry, list_files, tree_digest
from storage.keys import KeyPayload
from storage.manifest import InputRef, Manifest
from storage.runs import history
from storage.runs.record import Estimate, RunRecord, StageRecord
from storage.store import Store
from tasks.download import download
from tasks.download.config import FileSource
from tasks.stage.decorator import STAGES
from tasks.stage.session import open_session
from tasks.training.checkpoint_marker import CheckpointMarker
from tests.flows.test_cli import gristmill
from tests.flows.test_runs import profile_of


def publish(
    store: Store, stage: str, config: dict[str, Any], ref: str = "", *, version: int = 1,
    inputs: Mapping[str, str] | None = None, **told: Any,
) -> str:  # fmt: skip
    """An artifact of a stage with this config, counts and facts."""
    payload = KeyPayload(stage=stage, version=version, config=config, inputs=dict(inputs or {}))
    folder = store.workspace(stage, payload.key()) / "out"
    folder.mkdir()
    (folder / "a").write_bytes(b"some bytes")
    files = list_files(folder)
    made = told.pop("created", "2026-11-24T12:00:00.000000+00:00")
    manifest = Manifest(
        key=payload.key(), payload=payload, digest=tree_digest(files), files=files, created=made, **told
    )
    artifact = store.publish(folder, manifest)
    if ref:
        refs.move(store, ref, artifact.location, artifact.digest)
    return artifact.location


def pretrained(profile: Profile, seconds: float, starting: float) -> dict[str, Any]:
    """Counts and facts of a pretraining of this profile that took so long, of which a share to start."""
    work = training_of(profile)
    assert profile.pretrain is not None
    assert work is not None
    shape = derive(profile.pretrain.model, profile.tokenizer.vocab_size)
    tokens = profile.pretrain.samples(work.steps) * shape.context
    counts = {"tokens_seen": tokens, "parameters": count_parameters(shape)}
    return {"counts": counts, "facts": {"seconds": seconds, "starting_share": starting}}


@pytest.mark.parametrize(
    ("settings", "ratio"),
    [
        ([], 1),
        (["pretrain.steps=4000000"], 4_000_000 / 20),
        (["pretrain.global_batch=8"], 2),
    ],
)
def test_a_training_is_scaled_by_its_steps_and_batch(settings: list[str], ratio: float, tmp_path: Path) -> None:
    at = f"runtime.store={tmp_path / 'store'}"
    before = load("smoke", ["pretrain.steps=20", at])
    now = load("smoke", ["pretrain.steps=20", *settings, at])
    store = session_of(before).store
    assert before.pretrain is not None
    publish(store, "pretrain", before.pretrain.model_dump(mode="json"), "smoke/pretrain", **pretrained(before, 20, 0.5))
    found = estimates(store, plan(now), training_of(now))["pretrain"]
    assert found.seconds == pytest.approx(10 + 10 * ratio)
    times = f"scaled ×{ratio:,.3g} by operations from "
    assert found.source.startswith("pretrain/" if ratio == 1 else f"{times}pretrain/")


def test_a_training_is_scaled_by_the_size_of_its_model_whichever_profile_made_it(tmp_path: Path) -> None:
    at = f"runtime.store={tmp_path / 'store'}"
    before, now = load("smoke", [at]), load("tiny", ["pretrain.steps=60", at])
    store = session_of(before).store
    assert before.pretrain is not None
    publish(store, "pretrain", before.pretrain.model_dump(mode="json"), **pretrained(before, 20, 0.5))
    work, other = training_of(now), training_of(before)
    assert work is not None
    assert other is not None
    found = estimates(store, plan(now), work)["pretrain"]
    assert found.seconds == pytest.approx(10 + 10 * work.flops / other.flops)


def test_without_an_earlier_run_a_training_is_priced_by_arithmetic_and_the_rest_is_unknown(tmp_path: Path) -> None:
    profile = load("smoke", [f"runtime.store={tmp_path / 'store'}"])
    found = estimates(session_of(profile).store, plan(profile), training_of(profile, 12.0))
    assert found == {"pretrain": Estimate(seconds=12, source=WITHOUT_START)}
    assert not (tmp_path / "store").exists()


def test_the_start_of_another_training_is_added_to_arithmetic(tmp_path: Path) -> None:
    profile = load("smoke", [f"runtime.store={tmp_path / 'store'}"])
    store = session_of(profile).store
    facts = {"seconds": 30.0, "training_seconds": 6.0, "earlier_seconds": 15.0}  # of an attempt that was killed
    publish(store, "sft", {}, facts=facts)
    found = estimates(store, plan(profile), training_of(profile, 12.0))["pretrain"]
    assert found.seconds == 12 + 9
    assert found.source.startswith("arithmetic, with the start of sft/")


def test_a_data_stage_is_scaled_by_the_text_that_it_reads(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    with open_session(session_of(profile)) as session:
        raw, _ = download.materialize(profile.download, [])
    assert raw.manifest is not None
    assert profile.dedup is not None
    size = raw.manifest.facts["text_bytes"]
    told: dict[str, Any] = {"facts": {"seconds": 6.0, "bytes_in": 3 * size, "text_bytes": 3 * size}}
    told["uses"] = {"sketches": InputRef(location="sketches/collected")}
    publish(session.store, "dedup", profile.dedup.model_dump(mode="json"), **told)
    told = {"facts": {"seconds": 9.0, "bytes_in": 10 * size, "text_bytes": size}}
    assert profile.filter is not None
    publish(session.store, "filter", profile.filter.model_dump(mode="json"), **told)
    found = estimates(session.store, plan(profile), training_of(profile))
    assert found["dedup"].seconds == pytest.approx(2.0)
    assert "without language, form" in found["filter"].source
    assert found["dedup"].source.startswith("scaled ×0.333 by the bytes of text from dedup/")
    assert "no run has measured" not in found["dedup"].source
    assert found["filter"].seconds == pytest.approx(0.9), "of what dedup is expected to leave"


@pytest.mark.parametrize("reused", [0.0, 0.5, 1.0])
def test_of_the_same_inputs_parts_are_taken_to_be_there(reused: float, tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    with open_session(session_of(profile)) as session:
        raw, _ = download.materialize(profile.download, [])
    assert profile.dedup is not None
    lines = {line.name: line for line in plan(profile)}
    payload = lines["dedup"].payload
    assert payload is not None
    made = "2026-11-24T12:00:00.000000+00:00"
    sketch = profile.dedup.sketch.model_dump(mode="json")
    before: dict[str, Any] = {
        "facts": {"seconds": 7.0, "share_reused": reused},
        "created": "2026-11-24T11:59:58.000000+00:00",
        "inputs": payload.inputs,
    }
    part = publish(session.store, "sketches", sketch, version=STAGES["sketches"].version, **before)
    folder = session.store.workspace("dedup", "other") / "out"
    folder.mkdir()
    files: dict[str, FileEntry] = {}
    other = payload.model_copy(update={"config": {**payload.config, "threshold": 0.1}})
    size = raw.manifest.facts["text_bytes"] if raw.manifest else 0
    manifest = Manifest(
        key=other.key(), payload=other, digest=tree_digest(files), files=files, created=made,
        uses={"sketches": InputRef(location=part)}, facts={"seconds": 10.0, "bytes_in": size},
    )  # fmt: skip
    session.store.publish(folder, manifest)
    found = estimates(session.store, plan(profile), None)["dedup"]
    assert found.seconds == pytest.approx(3.0)
    assert found.source.endswith("its parts from the store")
    measured = estimates(session.store, plan(profile_of(tmp_path, "dedup.sketch.ngram=4")), None)["dedup"]
    anew = 3.0 + 7.0 / (1 - min(reused, 0.9))
    assert measured.seconds == pytest.approx(anew), "what another setting measured is work, all of it"
    assert measured.source.endswith("/" + other.key()[:8])
    (tmp_path / "notes.jsonl").write_text('{"text": "A word of some notes."}\n')
    found = estimates(session.store, plan(profile), None)["dedup"]
    assert found.seconds == pytest.approx(anew), "of other documents nothing is there"


def test_a_checkpoint_is_seen_and_only_the_rest_priced(tmp_path: Path) -> None:
    left_out = [f"{name}=null" for name in ("dedup", "filter", "sft", "dpo", "evaluate", "export")]
    profile = profile_of(tmp_path, *left_out)
    assert profile.pretrain is not None
    store = session_of(profile).store
    publish(
        store, "pretrain", profile.pretrain.model_dump(mode="json"), "smoke/pretrain", **pretrained(profile, 20, 0.5)
    )
    (line,) = [line for line in plan(profile) if line.name == "pretrain"]
    payload = KeyPayload(stage="pretrain", version=1, config={}, inputs={})
    line = line.__class__(**{**line.__dict__, "payload": payload})  # as if its inputs were there
    assert resumes_at(store, line) == 0
    folder = store.workspace("pretrain", payload.key()) / "scratch" / "checkpoints" / "step-000000020"
    folder.mkdir(parents=True)
    assert resumes_at(store, line) == 0, "it is not whole"
    CheckpointMarker(identity="", step=20, files={}).write(folder)
    assert resumes_at(store, line) == 20
    training = training_of(profile)
    found = estimates(store, [line], training)["pretrain"]
    assert found.seconds == pytest.approx(10 + 10 / 3), "a start, and ten of thirty steps"
    assert found.source.endswith("from step 20 of 30")
    assert list(told_of_resumes(store, [line], 30)) == ["pretrain resumes at step 20 of 30."]


def test_the_last_estimates_are_told_beside_what_came(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    assert list(last_time(store, "tiny")) == []
    stages = {
        "dedup": StageRecord(location="dedup/a", cached=False, seconds=52),
        "filter": StageRecord(location="filter/a", cached=True, seconds=0),
    }
    expected = {name: Estimate(seconds=40, source="") for name in stages}
    record = RunRecord(
        id="2026-11-24T12-00-00-abcdef", profile="tiny", config={}, host="", process=1, stages=stages,
        started="2026-11-24T12:00:00+00:00", estimates=expected,
    )  # fmt: skip
    history.write(store, record)
    assert list(last_time(store, "tiny")) == ["Last time: estimated 40.0 s, took 52.0 s (dedup)."]
    assert list(last_time(store, "smoke")) == []


def test_a_plan_tells_of_time_and_disk_for_people_and_for_programs(tmp_path: Path) -> None:
    at = f"--store={tmp_path / 'store'}"
    profile = load("smoke", [f"runtime.store={tmp_path / 'store'}"])
    store = session_of(profile).store
    publish(store, "dedup", {}, "smoke/dedup", facts={"seconds": 5.0})
    told = gristmill("plan", "smoke", at).stdout
    assert "Disk: about" in told
    assert "arithmetic" in told
    found = json.loads(gristmill("plan", "smoke", at, "--json").stdout)
    stages = {stage["stage"]: stage for stage in found["stages"]}
    assert stages["dedup"]["estimate"]["seconds"] == 5.0
    assert stages["filter"]["estimate"] is None
    assert stages["pretrain"]["estimate"]["source"] == WITHOUT_START
    assert found["disk"]["free"] > found["disk"]["needed"] > found["disk"]["checkpoints"] > 0
    assert room_of(store, plan(profile), None).checkpoints == 0


def line_of(profile: Profile, name: str) -> PlannedStage:
    """A stage as it is planned."""
    (line,) = (line for line in plan(profile) if line.name == name)
    return line


def test_download_is_scaled_by_the_bytes_of_its_sources(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    with open_session(session_of(profile)) as session:
        raw, _ = download.materialize(profile.download, [])
    assert raw.manifest is not None
    size = (tmp_path / "notes.jsonl").stat().st_size
    assert raw.manifest.facts["source_bytes"] == {"notes": size}
    with (tmp_path / "notes.jsonl").open("a") as file:
        file.write(json.dumps({"text": "x" * 3 * size}) + "\n")
    now = (tmp_path / "notes.jsonl").stat().st_size / size
    line = line_of(load("smoke", settings := [*sources_of(profile), "download.benchmarks=[arc_easy]"]), "download")
    found = estimates(session.store, [line], None)["download"]
    assert found.seconds == pytest.approx(now * raw.manifest.facts["seconds"], rel=0.01)
    assert f"scaled ×{now:,.3g} by the bytes of its sources" in found.source
    limited = load("smoke", [value.replace("]}]", "], limit: 1}]") for value in settings])
    assert growth(session.store, line_of(limited, "download"), raw.manifest, None, {}).ratio < now, "as it was read"


def sources_of(profile: Profile) -> list[str]:
    """The settings of a profile's store and of its only source of files."""
    (source,) = profile.download.sources
    assert isinstance(source, FileSource)
    paths = f"download.sources=[{{kind: files, name: {source.name}, paths: {source.paths}}}]"
    return [paths, f"runtime.store={profile.runtime.store}"]


@pytest.mark.parametrize(
    ("settings", "ratio"),
    [([], 2), (["evaluate.max_items=5"], 0.5), (["evaluate.tasks=[arc_easy]"], 1), (["dpo=null"], 4 / 3)],
)
def test_evaluation_is_scaled_by_questions_and_the_size_of_models(
    settings: list[str], ratio: float, tmp_path: Path
) -> None:
    profile = load("smoke", [f"runtime.store={tmp_path / 'store'}", *settings])
    store, work = session_of(profile).store, training_of(profile)
    assert profile.evaluate is not None
    assert work is not None
    base = publish(store, "base", {}, counts={"parameters": work.parameters // 2})
    tasks = {name: {"items": 20} for name in ("arc_easy", "piqa")}
    told: dict[str, Any] = {
        "counts": {"scores": {"base": {"tasks": tasks}}}, "facts": {"seconds": 8.0},
        "origins": {f"models.{name}": InputRef(location=base) for name in ("base", "sft", "dpo")},
    }  # fmt: skip
    config = {**profile.evaluate.model_dump(mode="json"), "max_items": None}
    publish(store, "evaluate", config, "smoke/evaluate", **told)
    found = estimates(store, [line_of(profile, "evaluate")], work)["evaluate"]
    assert found.seconds == pytest.approx(8 * ratio, rel=0.01)
    assert ("by questions × parameters of models from evaluate/" in found.source) is (ratio != 1)


def test_export_is_scaled_by_formats_and_the_size_of_the_model(tmp_path: Path) -> None:
    profile = load(
        "smoke", [f"runtime.store={tmp_path / 'store'}", "export.formats=[safetensors, gguf-f32, gguf-q8_0]"]
    )
    store, work = session_of(profile).store, training_of(profile)
    assert profile.export is not None
    assert work is not None
    model = publish(store, "dpo", {}, counts={"parameters": work.parameters // 2})
    config = {**profile.export.model_dump(mode="json"), "formats": ["safetensors"]}
    told: dict[str, Any] = {"facts": {"seconds": 4.0}, "origins": {"model": InputRef(location=model)}}
    publish(store, "export", config, "smoke/export", **told)
    found = estimates(store, [line_of(profile, "export")], work)["export"]
    assert found.seconds == pytest.approx(4 * 3 * 2, rel=0.01)
    assert found.source.startswith("scaled ×6 by formats × parameters from export/")


def test_parts_that_are_made_at_once_count_once(tmp_path: Path) -> None:
    profile = load("smoke", [f"runtime.store={tmp_path / 'store'}"])
    store = session_of(profile).store
    assert profile.evaluate is not None
    created = "2026-11-24T12:00:00.000000+00:00"
    scores = [publish(store, "score", {"n": n}, created=created, facts={"seconds": 30.0}) for n in range(3)]
    uses = {f"score.base/{n}": InputRef(location=where) for n, where in enumerate(scores)}
    told: dict[str, Any] = {"facts": {"seconds": 33.0}, "uses": uses, "created": "2026-11-24T12:00:01.000000+00:00"}
    publish(store, "evaluate", profile.evaluate.model_dump(mode="json"), "smoke/evaluate", **told)
    assert estimates(store, [line_of(profile, "evaluate")], None)["evaluate"].seconds == pytest.approx(33)
