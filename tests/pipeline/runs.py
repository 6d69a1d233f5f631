"""Whole runs of the profile `smoke` in processes of their own, and what they leave in a store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from storage.store import Store

ROOT = Path(__file__).parents[2]
# In the order of the pipeline: what is killed in one stage has made those before it
FIRST, LAST = ("language", "form", "toxicity_model", "toxicity", "contamination"), ("pii", "pii_metadata")
SIGNALS = (*FIRST, *LAST)
DATA_STAGES = ("download", "sketches", "dedup", *FIRST, "passed", *LAST, "filter", "tokenizer", "tokenize")
SMALL = "download.sources=[{kind: embedded, corpora: [encyclopedia], limit: 200}]"  # where the text is not the point
SECRETS = {  # as a user gives them, and as no run may keep or print them
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/aSecretOfTests",
    "HF_TOKEN": "hf_ASecretOfTestsASecretOfTestsASecret",
    "FSSPEC_FTP_PASSWORD": "correct-horse-battery",
    "WANDB_API_KEY": "0123456789abcdefASecretOfTests",
}


def mind_signals() -> None:
    """In a child before it starts: a shell has what it starts in the background ignore Ctrl-C, and nohup has it ignore
    a closed terminal. These tests may run so, and what they start would too."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(
    store: Path, *arguments: str, sets: tuple[str, ...] = (), profile: str = "smoke", command: str = "run"
) -> subprocess.Popen[str]:
    """`gristmill run` or another command, of `smoke` unless another profile is named, on a store."""
    overrides = [f"--set={value}" for value in (f"runtime.store={store}", *sets)]
    words = [sys.executable, "-m", "flows.cli", command, profile, *arguments, *overrides]
    environment = {**os.environ, **SECRETS, "COLUMNS": "200"}
    return subprocess.Popen(
        words, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What a run said; it ended well."""
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


def fork(*runs: dict[str, Any]) -> tuple[list[int], str]:
    """The exit code of each run without Prefect, and what they complained of. See forked.py."""
    command = [sys.executable, "-m", "tests.pipeline.forked", json.dumps(runs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def digests(store: Path | str, *stages: str) -> dict[str, str]:
    """The digest of every artifact in a store, or of those of some stages, by location."""
    opened = Store(str(store))
    found = {location: opened.manifest(location) for location in opened.locations()}
    return {
        location: manifest.digest
        for location, manifest in found.items()
        if manifest and (not stages or manifest.stage in stages)
    }
