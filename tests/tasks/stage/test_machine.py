"""Cores and memory: what a container or an affinity leaves of the machine, in either version of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.stage import machine
from tasks.stage.runtime import DataRuntime

GIGABYTE = 1 << 30


def lay_out(folder: Path, groups: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A /proc and a /sys/fs/cgroup with these files."""
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "self" / "cgroup").write_text(groups)
    (folder / "cgroup").mkdir()
    for name, text in files.items():
        (folder / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup" / name).write_text(text)
    return folder / "proc", folder / "cgroup"


@pytest.mark.parametrize(
    ("groups", "files", "gigabytes", "cores"),
    [
        ("0::/job\n", {"job/memory.max": str(GIGABYTE), "job/cpu.max": "50000 100000\n"}, 1, 1),
        ("0::/job/step\n", {"job/memory.max": str(GIGABYTE), "job/step/memory.max": "max"}, 1, None),
        ("0::/gone\n", {"memory.max": str(GIGABYTE), "cpu.max": "100000 100000"}, 1, 1),
        (
            "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n",
            {
                "memory/box/memory.limit_in_bytes": str(GIGABYTE),
                "memory/memory.limit_in_bytes": str(1 << 62),
                "cpu/box/cpu.cfs_quota_us": "100000",
                "cpu/box/cpu.cfs_period_us": "100000",
            },
            1,
            1,
        ),
        ("0::/\n", {"memory.max": "max\n", "cpu.max": "max 100000\n"}, None, None),
        ("", {}, None, None),
    ],
    ids=["version 2", "a group above", "a path of the host", "version 1", "no limit", "no control groups"],
)
def test_the_smallest_limit_counts(
    groups: str, files: dict[str, str], gigabytes: int | None, cores: int | None, tmp_path: Path
) -> None:
    proc, cgroups = lay_out(tmp_path, groups, files)
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.memory(proc, cgroups) == (gigabytes * GIGABYTE if gigabytes else installed)
    assert machine.cores(proc, cgroups) == (cores or len(os.sched_getaffinity(0)))


def test_affinity_counts_and_is_what_the_runtime_takes() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine.cores() == 1
        assert DataRuntime().workers == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_nobody_asks_the_machine_past_this() -> None:
    root = Path(__file__).parents[3]
    asked = ("cpu_count", "sched_getaffinity", "SC_PHYS_PAGES", "virtual_memory", "memory.max")
    asking = {
        path.relative_to(root).as_posix()
        for package in ("gristmill", "flows", "tasks", "storage", "models", "profiles", "benchmarks")
        for path in (root / package).rglob("*.py")
        if not any(part.startswith(".") for part in path.relative_to(root).parts)  # environments of benchmarks
        if any(name in path.read_text() for name in asked)
    }
    assert asking == {"tasks/stage/machine/__init__.py"}
