"""What a small run costs before it has done anything: no process of it imports what its stages don't use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.pipeline.runs import ROOT, SMALL

HEAVY = (
    "torch", "transformers", "datasets", "accelerate", "trl", "peft", "deepspeed", "lm_eval", "sklearn", "spacy",
    "presidio_analyzer", "matplotlib", "nltk", "phonenumbers", "llama_cpp", "uvicorn", "prefect.server",
)  # fmt: skip


def test_a_run_up_to_dedup_imports_no_library_of_later_stages_and_no_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "run", "smoke", "--to=dedup", f"--store={tmp_path / 'store'}"]
    settings = ["--set", SMALL, "--set", "runtime.data.workers=2"]
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}  # of each process
    done = subprocess.run([*command, *settings], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"flows.pipeline", "prefect", "numba", "tasks.dedup.run"} <= imported
    assert not [name for name in imported if name.startswith(tuple(f"{heavy}." for heavy in HEAVY)) or name in HEAVY]
