"""The plan: what a run would do, and what a stage that must be made will need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flows.arithmetic import training_plan
from flows.diagram.stages import stages
from flows.plan import plan
from flows.session import Run, handed_on, session_of, start
from profiles.load import load
from storage import remembered
from storage.artifact import Artifact
from storage.digests import file_digest
from storage.errors import ConfigError
from tasks.dedup import dedup
from tasks.download import download
from tasks.stage.config import StageConfig
from tasks.stage.protocol import AnyStage, Input
from tasks.stage.session import open_session


def test_a_run_hashes_its_sources_once_for_its_plan_and_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.jsonl").write_text('{"text": "A note of some words."}\n')
    hashed: list[Path] = []

    def noted(path: Path) -> str:
        hashed.append(path)
        return file_digest(path)

    monkeypatch.setattr(remembered, "file_digest", noted)
    monkeypatch.setattr(remembered, "SETTLED_SECONDS", 0.0)  # else a file as young as this one is not remembered
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
    (tmp_path / "pairs.jsonl").write_text("{}\n")
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
    with pytest.raises(ConfigError, match="set `pretrain: null`"):
        load("smoke", settings[:2])
    with pytest.raises(ConfigError, match="pretrain is missing"):
        load("smoke", ["pretrain=null"])
    with pytest.raises(ConfigError, match="starts from a base model, and pretrains none"):
        training_plan(profile)


def test_memory_and_disk_of_dedup_are_forecast_as_soon_as_documents_can_be_counted(tmp_path: Path) -> None:
    profile = load("smoke", [f"runtime.store={tmp_path / 'store'}", "runtime.data.workers=1"])
    lines = {line.name: line for line in plan(profile)}
    assert lines["dedup"].forecast is None  # nothing is known of the documents
    with open_session(session_of(profile)):
        assert profile.dedup is not None
        raw, _ = download.materialize(profile.download, [])
        counted = {line.name: line for line in plan(profile)}
        unique, _ = dedup.materialize(profile.dedup, [raw.part("documents")])
    forecast = counted["dedup"].forecast
    assert forecast is not None
    assert unique.manifest is not None
    documents = unique.manifest.counts["documents"]["in"]
    assert 300e6 < forecast.memory < 300e6 + 600 * documents
    assert 512 * documents < forecast.disk < 1024 * documents
    assert "21 bands of 6 rows" in forecast.note
    assert {line.name: line for line in plan(profile)}["dedup"].forecast is None  # a hit needs nothing
