"""The energy of a stage: counters that come round, that fail, and that are missing."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tasks.stage.machine import energy
from tasks.stage.machine.energy import Energy

NO_GPU = "libno-such-library.so"
# NVML's functions, of two GPUs that use 1.5 J between two readings
STAND_IN = """
static unsigned long long read_so_far[2];
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **handle) { *handle = &read_so_far[number]; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
    *millijoules = 0x200000000ULL + 1500 * (*(unsigned long long *)handle)++;
    return 0;
}
"""


def domain(powercap: Path, number: str, name: str, microjoules: int) -> Path:
    folder = powercap / f"intel-rapl:{number}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text("100000000\n")
    count(folder / "energy_uj", microjoules)
    return folder / "energy_uj"


def count(counter: Path, microjoules: int) -> None:
    """In one step, as the kernel's files change: a thread reads them meanwhile, and a failed read ends its count."""
    (counter.parent / "next").write_text(f"{microjoules}\n")
    (counter.parent / "next").replace(counter)


def test_packages_and_memory_are_summed_by_kind_and_cores_within_a_package_are_not(tmp_path: Path) -> None:
    counters = [domain(tmp_path, f"{number}", f"package-{number}", 10_000_000) for number in (0, 1)]
    counters.append(domain(tmp_path, "0:1", "dram", 0))
    within = domain(tmp_path, "0:0", "core", 0)
    used = Energy(tmp_path, NO_GPU)
    for path in (*counters, within):
        count(path, 12_500_000)
    assert used.joules == {"cpu": 5.0, "memory": 12.5}


def test_a_counter_that_comes_round_is_read_before_it_does_so_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "TICK_SECONDS", 0.01)
    counter = domain(tmp_path, "0", "package-0", 99_000_000)
    used = Energy(tmp_path, NO_GPU)
    for value in (60_000_000, 20_000_000, 80_000_000):  # 61 J, 60 J, 60 J later
        count(counter, value)
        time.sleep(0.1)
    assert used.joules == {"cpu": 181.0}


def test_what_can_t_be_read_is_not_guessed(tmp_path: Path) -> None:
    assert Energy(tmp_path, NO_GPU).joules == {}
    counter = domain(tmp_path, "0", "package-0", 0)
    used = Energy(tmp_path, NO_GPU)
    counter.unlink()
    assert used.joules == {}
    domain(tmp_path, "0", "package-0", 5_000_000)
    assert used.joules == {}, "a part of the time is not the whole"


def test_gpus_are_asked_through_the_driver_s_library(tmp_path: Path) -> None:
    source, library = tmp_path / "nvml.c", tmp_path / "nvml.so"
    source.write_text(STAND_IN)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    except FileNotFoundError:
        pytest.skip("needs a C compiler")
    assert Energy(tmp_path, str(library)).joules == {"gpu": 3.0}
