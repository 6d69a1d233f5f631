"""What a small run costs before it has done anything: no process of it imports what its stages don't use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.pipeline.runs import ROOT, SMALL

HEAVY = (
    "torch",
    "transformers",
    "datasets",
    "accelerate",
    "trl",
    "peft",
    "deepspeed",
    "lm_eval",
    "sklearn",
    "spacy",
    "presidio_analyzer",
    "matplotlib",
    "nltk",
    "phonenumbers",
    "llama_cpp",
    "uvicorn",
    "prefect",
)


# Of these help needs nothing
SLOW = ("pydantic", "numpy", "pyarrow", "fsspec", "httpx", "yaml", "prefect", "numba", "storage.store", "tasks")


def imported_by(*arguments: str) -> set[str]:
    """Every module that a command imports, in any of its processes."""
    command = [sys.executable, "-m", "flows.cli", *arguments]
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}  # of each process
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def among(imported: set[str], libraries: tuple[str, ...]) -> list[str]:
    return [name for name in imported if name.startswith(tuple(f"{each}." for each in libraries)) or name in libraries]


def test_a_run_up_to_dedup_imports_no_library_of_later_stages_and_the_next_no_numba(tmp_path: Path) -> None:
    settings = ["--set", SMALL, "--set", "runtime.data.workers=2", f"--store={tmp_path / 'store'}"]
    imported = imported_by("run", "smoke", "--to=dedup", *settings)
    assert {"flows.pipeline", "numba", "tasks.dedup.run"} <= imported
    assert not among(imported, HEAVY)
    again = imported_by("run", "smoke", "--to=dedup", *settings)
    assert "flows.pipeline" in again
    assert not among(again, (*HEAVY, "numba", "scipy"))


def test_help_imports_what_prints_it_alone() -> None:
    imported = imported_by("--help") - {"tasks", "tasks.checks", "tasks.checks.quiet"}  # a table of variables
    assert not among(imported, SLOW)
