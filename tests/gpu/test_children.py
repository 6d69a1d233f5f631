"""Children that are forks use the GPU as new processes do, whatever was imported before the fork."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.children import launchers, supervise
from tasks.children.warm import processes
from tasks.children.warm.server import LIBRARIES
from tests.gpu.test_runs import config, run
from tests.tasks.pretrain.tiny_training import losses_of

FORK = """
import os, sys, threading
from pathlib import Path
from tasks.children.devices import uses_gpu
from tasks.children.warm import processes
from tasks.children.warm.server import import_for
import_for({module!r})
assert not uses_gpu()
tasks = [Path(task, "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
print("threads", tasks, file=sys.stderr)
import torch
for _ in range(2):
    pid = os.fork()
    if not pid:
        assert torch.cuda.is_available() or {device!r} == "cpu"
        ones = torch.ones(1024, 1024, device={device!r})
        assert float((ones @ ones).sum()) == 1 << 30
        assert uses_gpu() or {device!r} == "cpu"
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.parametrize("start", [start for start, names in LIBRARIES.items() if names])
def test_what_is_imported_before_a_fork_leaves_the_gpu_alone(start: str, device: str) -> None:
    script = FORK.format(module=f"{start}nothing", device=device)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_a_fork_learns_what_a_new_process_learns(
    engine: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, and as the one rank of a launcher, whose ranks are forks in their turn."""
    forked = []

    def fork(*arguments: Any) -> Any:
        forked.append(processes.fork(*arguments))
        return forked[-1]

    def by_launcher(module: str, spec: Path, *_: Any, **__: Any) -> list[str]:
        return [sys.executable, "-m", "tasks.children.ranks", "1", str(launchers.free_port()), module, str(spec)]

    found = []
    with monkeypatch.context() as patch:
        patch.setattr(supervise, "may_fork", lambda command: False)
        found.append(losses_of(run(tmp_path / "new", tmp_path, device, config(), engine=engine)))
    monkeypatch.setattr(supervise, "fork", fork)
    found.append(losses_of(run(tmp_path / "forked", tmp_path, device, config(), engine=engine)))
    monkeypatch.setattr(launchers, "training_command", by_launcher)
    found.append(losses_of(run(tmp_path / "ranks", tmp_path, device, config(), engine=engine)))
    assert len(forked) == 2
    for losses in found[1:]:
        assert losses == pytest.approx(found[0], abs=1e-3)
