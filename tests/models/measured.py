"""The peak resident memory of real training processes, for models of random weights in any architecture."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.children.environment import training_environment
from tasks.children.launchers import free_port
from tasks.stage.runtime import Runtime

ROOT = Path(__file__).parents[2]
EVERY = 0.02  # seconds


def peaks_of(module: str, spec: Path, runtime: Runtime, environment: Mapping[str, str] | None = None) -> list[int]:
    """Bytes at the peak of each rank of a training child: the high-water mark of its resident set."""
    ranks = runtime.training.processes
    world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    world["MASTER_PORT"] = str(free_port())
    log = spec.with_suffix(".log").open("w")
    with log:
        children = [
            subprocess.Popen(
                [sys.executable, "-m", module, str(spec)],
                cwd=ROOT,
                env={
                    **training_environment(runtime.compute, ranks, module),
                    **({**world, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}),
                    **(environment or {}),
                },
                stdout=log,
                stderr=log,
            )
            for rank in range(ranks)
        ]
        peaks = _watch(children)
    if any(child.returncode for child in children):
        raise AssertionError(spec.with_suffix(".log").read_text()[-3000:])
    return peaks


def _watch(children: Sequence[subprocess.Popen[Any]]) -> list[int]:
    peaks = [0] * len(children)
    while any(child.poll() is None for child in children):
        for number, child in enumerate(children):
            try:
                status = Path(f"/proc/{child.pid}/status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
            peaks[number] = max(peaks[number], 1024 * found[0]) if found else peaks[number]
        time.sleep(EVERY)
    return peaks
