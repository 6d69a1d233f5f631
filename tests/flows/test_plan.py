"""The plan: what a run would do, and what a stage that must be made will need."""

from __future__ import annotations

from pathlib import Path

from flows.plan import plan
from flows.session import session_of
from profiles.load import load
from tasks.dedup import dedup
from tasks.download import download
from tasks.stage.session import open_session


def test_memory_and_disk_of_dedup_are_forecast_as_soon_as_documents_can_be_counted(tmp_path: Path) -> None:
    profile = load("smoke", [f"runtime.store={tmp_path / 'store'}", "runtime.data.workers=1"])
    lines = {line.name: line for line in plan(profile)}
    assert lines["dedup"].forecast is None  # nothing is known of the documents
    with open_session(session_of(profile)):
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
