"""The plan: what a run would do, and the needs of stages to make."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flows.estimates.arithmetic import training_plan
from flows.estimates.plan_notes import run_notes
from flows.pipeline import stages
from flows.plan import plan
from flows.records.recorder import Asked
from flows.session import Run, handed_on, recorded, session_of, start
from profiles.load import load
from storage import digest_cache, digests
from storage.artifact import Artifact
from storage.digests import file_digest
from storage.errors import ConfigError
from storage.files import locks
from tasks.dedup import dedup
from tasks.download import download
from tasks.stage.config import StageConfig
from tasks.stage.protocol import AnyStage, Input
from tasks.stage.session import open_session
from tests.flows.commands.test_cli import gristmill
from tests.flows.commands.test_runs import profile_of, run_stages


def test_a_run_hashes_its_sources_once_for_its_plan_and_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.jsonl").write_text('{"text": "A note of some words."}\n')
    hashed: list[Path] = []

    def noted(path: Path) -> str:
        hashed.append(path)
        return file_digest(path)

    monkeypatch.setattr(digests, "file_digest", noted)
    monkeypatch.setattr(
        digest_cache, "SETTLED_SECONDS", 0.0
    )  # otherwise the digest of so young a file is not remembered
    sources = f"download.sources=[{{kind: files, name: notes, paths: ['{tmp_path}/notes.jsonl']}}]"
    settings = [sources, "download.benchmarks=[arc_easy]", f"runtime.store={tmp_path / 'store'}"]
    profile = load("smoke", settings)
    session = session_of(profile, "download")

    def work(stage: AnyStage, config: StageConfig, inputs: Sequence[Input]) -> Artifact:
        return stage.materialize(config, inputs)[0]

    assert [line.hit for line in plan(profile, session)] == [False]
    with handed_on(Run(profile, replace(session, call=work))), start("tiny", (), None, ()) as chosen:
        stages(chosen)
    assert [line.hit for line in plan(profile, session)] == [True]
    assert hashed.count(tmp_path / "notes.jsonl") == 1


def test_a_part_that_is_refreshed_refreshes_the_stage_that_asks_for_it() -> None:
    profile = load("smoke")
    assert session_of(profile, refresh=["form"]).refresh == {"form", "filter"}
    assert session_of(profile, refresh=["sketches", "dpo"]).refresh == {"sketches", "dedup", "dpo"}


def test_a_profile_without_some_stages_plans_the_shorter_diagram(tmp_path: Path) -> None:
    left_out = [f"{name}=null" for name in ("dedup", "filter", "sft", "dpo", "evaluate", "export")]
    profile = load("smoke", [*left_out, f"runtime.store={tmp_path / 'store'}"])
    assert [line.name for line in plan(profile)] == ["download", "tokenizer", "tokenize", "pretrain"]
    only_sft = load("smoke", ["dpo=null", "filter=null", f"runtime.store={tmp_path / 'store'}"])
    names = ["download", "dedup", "tokenizer", "tokenize", "pretrain", "sft", "evaluate", "export"]
    assert [line.name for line in plan(only_sft)] == names


def test_a_profile_with_a_base_plans_the_shorter_diagram(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "Name a river.", "completion": "The Danube."}\n')
    (tmp_path / "model").mkdir()
    pairs = f"{{kind: files, name: pairs, paths: ['{tmp_path}/pairs.jsonl'], role: instructions}}"
    settings = [f"runtime.store={tmp_path / 'store'}", f"base.folder={tmp_path / 'model'}", "pretrain=null", "dpo=null"]
    profile = load("smoke", [*settings, f"download.sources=[{pairs}]", "filter=null"])
    assert [line.name for line in plan(profile)] == ["download", "base", "sft", "evaluate", "export"]
    assert profile.stage_names == ("download", "base", "sft", "evaluate", "export")
    cleaned = load("smoke", [*settings, f"download.sources=[{pairs}]"])
    assert [line.name for line in plan(cleaned)] == ["download", "base", "pairs", "sft", "evaluate", "export"]
    assert session_of(cleaned, refresh=["pairs"]).refresh == {"pairs"}
    with pytest.raises(ConfigError, match="leaves out dedup"):
        session_of(cleaned, refresh=["dedup"])
    session = replace(session_of(profile), checks={})
    plan(profile, session)
    assert list(session.checks) == ["sft"], "whether enough pairs fit is asked before the first training"
    with pytest.raises(ConfigError, match="or `pretrain: null` to only fine-tune it"):
        load("smoke", settings[:2])
    with pytest.raises(ConfigError, match="pretrain is missing"):
        load("smoke", ["pretrain=null"])
    with pytest.raises(ConfigError, match="doesn't pretrain, or a base whose shape isn't known"):
        training_plan(profile)


def test_memory_and_disk_of_dedup_are_forecast_from_the_sources_and_then_from_the_documents(tmp_path: Path) -> None:
    profile = load("smoke", [f"runtime.store={tmp_path / 'store'}", "runtime.data.workers=1"])
    lines = {line.name: line for line in plan(profile)}
    expected = lines["dedup"].forecast
    assert expected is not None, "of the sources' documents, which are not read yet"
    with open_session(session_of(profile)):
        assert profile.dedup is not None
        raw, _ = download.materialize(profile.download, [])
        counted = {line.name: line for line in plan(profile)}
        unique, _ = dedup.materialize(profile.dedup, [raw.part("documents")])
    forecast = counted["dedup"].forecast
    assert forecast is not None
    assert expected.memory == pytest.approx(forecast.memory, rel=0.05)
    assert unique.manifest is not None
    documents = unique.manifest.counts["documents"]["in"]
    assert 300e6 < forecast.memory < 300e6 + 600 * documents
    assert 512 * documents < forecast.disk < 1024 * documents
    assert "21 bands of 6 rows" in forecast.note
    assert {line.name: line for line in plan(profile)}["dedup"].forecast is None  # a hit needs nothing


def test_a_plan_ends_where_a_run_would_and_makes_anew_what_it_would(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    run_stages(profile, "download")
    sources = json.dumps([source.model_dump() for source in profile.download.sources])
    asked = ["smoke", f"--set=download.sources={sources}", "--set=download.benchmarks=[arc_easy]"]
    asked += [f"--store={tmp_path / 'store'}", "--to=dedup"]
    told = gristmill("plan", *asked, "--refresh=download")
    assert "Source files: notes 1 file, 34 B." in told.stdout, told.stderr
    assert "refresh was asked for" in told.stdout
    assert "filter" not in told.stdout
    assert "The model" not in told.stdout, "nothing is trained"
    found = json.loads(gristmill("plan", *asked, "--json").stdout)
    assert [(line["stage"], line["hit"]) for line in found["stages"]] == [("download", True), ("dedup", False)]
    assert gristmill("plan", *asked, "--to=nothing").returncode == 1
    (tmp_path / "notes.jsonl").unlink()
    gone = gristmill("plan", *asked)
    assert (gone.returncode, "no file matches" in gone.stderr) == (1, True)


def test_a_file_that_a_later_stage_needs_ends_the_plan(tmp_path: Path) -> None:
    settings = [f"runtime.store={tmp_path / 'store'}", f"evaluate.language.files={{mine: {tmp_path}/absent.txt}}"]
    with pytest.raises(ConfigError, match=r"absent\.txt"):
        plan(load("smoke", settings))


def test_a_plan_says_what_another_run_makes_now(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    session = session_of(profile, "download")
    session.store.begin()
    lines = plan(profile, session)
    assert list(run_notes(session.store, lines)) == []
    assert lines[0].payload is not None
    lock = session.store.local / "locks" / f"download-{lines[0].payload.key()}"
    with locks.hold(lock):
        lock.write_text(f"process 1 on {socket.gethostname()}")
        (told,) = run_notes(session.store, lines)
        maker = lock.read_text()
        assert told == f"P{maker[1:]} is making download now: a run of this plan would wait for it."
        with recorded(profile, session, Asked("smoke")) as run:
            assert run.record is not None
            record = run.record.record = run.record.record.model_copy(update={"process": 1})
            run.session.observer.started("download", "never made before")
            (told,) = run_notes(session.store, lines)
            waits = ": a run of this plan would wait for it."
            assert told == f"Run {record.id} of smoke is making download now{waits}"
            run.record.record = record.model_copy(update={"process": 2})
            run.session.observer.started("download", "never made before")
            other, own = run_notes(session.store, lines)
            assert other == f"Run {record.id} of smoke is making download now.", "another artifact"
            assert own == f"P{maker[1:]} is making download now: a run of this plan would wait for it."
    assert list(run_notes(session.store, lines)) == [], "it has ended"
