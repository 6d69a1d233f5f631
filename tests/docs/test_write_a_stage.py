"""The page on writing a stage: its diffs add the stage to a copy of the checkout, which then runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from storage.shards.documents import read_documents
from storage.store import Store
from tests.docs.pages import ROOT, blocks
from tests.flows.small import SMALL

PACKAGES = ("flows", "profiles", "tasks", "models", "storage", "tests/pipeline")
SETTINGS = ["dedup=null", "filter=null", "lowercase.min_characters=200"]


def test_its_diffs_add_the_stage_to_the_pipeline(tmp_path: Path) -> None:
    copy, store = tmp_path / "checkout", Store(str(tmp_path / "store"))
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "tasks" / "lowercase").mkdir()
    stage, *_ = [block.text for block in blocks("python") if block.page.name == "write-a-stage.md"]
    (copy / "tasks" / "lowercase" / "stage.py").write_text(stage)
    for block in blocks("diff"):
        command = ["git", "apply", "-"]
        applied = subprocess.run(command, cwd=copy, input=dedent(block.text), capture_output=True, text=True)
        assert applied.returncode == 0, f"{block.name}: {applied.stderr}"
    settings = [*(setting for setting in SMALL if setting.startswith("download.")), *SETTINGS]
    runs = json.dumps([{"store": store.url, "overrides": settings, "to": "lowercase"}])
    command = [sys.executable, "-m", "tests.pipeline.forked", runs]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.stdout.endswith("[0]\n"), f"{done.stdout}{done.stderr}"
    (made,) = [location for location in store.locations() if location.startswith("lowercase/")]
    artifact = store.get(made)
    assert artifact.manifest is not None
    counts = artifact.manifest.counts["documents"]
    assert counts["removed"]["too_short"] > 0
    kept = [document for shard in artifact.files("documents/*.parquet") for document in read_documents(shard)]
    assert len(kept) == counts["kept"]
    assert all(document.text == document.text.lower() for document in kept)
