"""Whole runs of the profile `smoke`: end to end, from the cache, killed in every stage, two at once, any workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from profiles.schema import STAGE_NAMES
from storage.inspect import verify
from storage.store import Store
from tests.pipeline.pin_losses import PINNED, first_losses

ROOT = Path(__file__).parents[2]
SIGNALS = ("form", "language", "pii", "contamination", "toxicity_model", "toxicity")
TRAINED = ("repair", "quality_model", "quality", "perplexity_model", "perplexity")  # when a profile asks for them
DATA_STAGES = ("download", "sketches", "dedup", *SIGNALS, "filter", "tokenizer", "tokenize")
MODEL_STAGES = STAGE_NAMES[5:]
# Several shards, so that workers have something to share out
SHARDED = (
    "download.sources=[{kind: embedded, corpora: [encyclopedia, packages], limit: 80, instructions: 9}]",
    "download.shard_documents=40",
    "filter.repair={}",
    "filter.quality={min_score: null, measure: {model: {positive: [encyclopedia-en]}}}",
    "filter.perplexity={measure: {model: {sources: [encyclopedia-en]}}}",
)


def start(store: Path, *arguments: str, sets: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """`gristmill run smoke` on a store."""
    overrides = [f"--set={value}" for value in (f"runtime.store={store}", *sets)]
    command = [sys.executable, "-m", "flows.cli", "run", "smoke", *arguments, *overrides]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


def digests(store: Path, *stages: str) -> dict[str, str]:
    opened = Store(str(store))
    found = {location: opened.manifest(location) for location in opened.locations()}
    return {
        location: manifest.digest
        for location, manifest in found.items()
        if manifest and (not stages or manifest.stage in stages)
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    store = tmp_path_factory.mktemp("undisturbed") / "store"
    return store, finish(start(store))


def test_raw_text_becomes_a_release(undisturbed: tuple[Path, str]) -> None:
    store, said = undisturbed
    assert [name for name in STAGE_NAMES if re.search(rf"{name} .*made in", said)] == list(STAGE_NAMES)
    release = Path(re.search(r"Release: (.*)", said).group(1))  # type: ignore[union-attr]
    for name in ("safetensors/model.safetensors", "int8/model.safetensors", "gguf/model-f16.gguf", "parity.json"):
        assert (release / name).is_file()
    assert "| bits per byte |" in (release / "README.md").read_text()
    opened = Store(str(store))
    for location in opened.locations():
        assert verify(opened, location) == []


def test_the_first_losses_are_those_that_they_were(undisturbed: tuple[Path, str]) -> None:
    assert first_losses(undisturbed[0]) == pytest.approx(json.loads(PINNED.read_text()), abs=1e-5)


def test_a_second_run_takes_everything_from_the_store(undisturbed: tuple[Path, str]) -> None:
    store, _ = undisturbed
    before = digests(store)
    said = finish(start(store))
    assert len(re.findall(r"cached", said)) == len(STAGE_NAMES)
    assert digests(store) == before


def test_a_changed_threshold_measures_nothing_again_and_why_names_it(undisturbed: tuple[Path, str]) -> None:
    store, _ = undisturbed
    before = set(digests(store, "download", "dedup", *SIGNALS))
    changed = "filter.toxicity.max_score=0.5"
    command = [sys.executable, "-m", "flows.cli", "why", "filter", "smoke", f"--set=runtime.store={store}"]
    told = subprocess.run([*command, f"--set={changed}"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "MISS" in told
    assert re.search(r"filter\.toxicity\.max_score\s+0\.8\s+0\.5", told)
    said = finish(start(store, "--to=tokenize", sets=(changed,)))
    for family in SIGNALS:
        assert re.search(rf"{family} .*cached", said)
    assert set(digests(store, "download", "dedup", *SIGNALS)) == before
    assert len(digests(store, "filter")) == 2
    after = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "HIT" in after
    assert "filter.toxicity.max_score" in after


def test_killed_in_the_middle_of_every_stage_it_ends_with_the_same_bytes(
    undisturbed: tuple[Path, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    script = [sys.executable, "-m", "tests.pipeline.kill_midway", str(store)]
    for stage in (*DATA_STAGES, *MODEL_STAGES):
        done = subprocess.run([*script, stage], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, f"{stage}: {done.stderr}"
    done = subprocess.run([*script, "none"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    mine = digests(store)
    assert mine.items() <= digests(undisturbed[0]).items()
    assert {location.split("/")[0] for location in mine} == {*DATA_STAGES, *MODEL_STAGES}
    assert not list((store / "work").iterdir())


def test_two_runs_at_once_make_each_stage_once(tmp_path: Path) -> None:
    store = tmp_path / "store"
    runs = [start(store, "--to=tokenize") for _ in range(2)]
    said = "".join(finish(run) for run in runs)
    for stage in ("download", "dedup", "filter", "tokenizer", "tokenize"):
        assert len(re.findall(rf"{stage} .*made in .* {stage}/", said)) == 1, stage
        assert len(re.findall(rf"{stage} .*cached", said)) == 1, stage
        assert len(digests(store, stage)) == 1


def test_the_number_of_workers_changes_no_byte(tmp_path: Path) -> None:
    results = []
    for workers in (1, 2, 8):
        store = tmp_path / str(workers)
        finish(start(store, "--to=tokenize", sets=(*SHARDED, f"runtime.workers={workers}")))
        results.append(digests(store))
    assert results[0] == results[1] == results[2]
    assert {location.split("/")[0] for location in results[0]} == {*DATA_STAGES, *TRAINED}
