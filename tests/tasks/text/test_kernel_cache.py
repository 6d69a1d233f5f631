"""Compiled kernels: found by every clone, never another's, and not kept for ever."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from numba.core.caching import IndexDataCacheFile

import tasks
from tasks.text import kernel_cache
from tasks.text.kernel_cache import UNUSED_SECONDS, make_room

ROOT = Path(tasks.__file__).parents[1]
CALL = """
import numpy as np
from tasks.text.ngram_kernels import weight_of
assert weight_of(2)
print(sum(weight_of.stats.cache_hits.values()), sum(weight_of.stats.cache_misses.values()))
"""


def clone(folder: Path) -> Path:
    """A checkout with what a kernel needs."""
    for package in ("tasks", "storage"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def found_and_compiled(checkout: Path, cache: Path) -> tuple[int, int]:
    """How often a program of a checkout found a kernel, and how often it compiled it."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-P", "-c", CALL], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, compiled = map(int, done.stdout.split())
    return found, compiled


def test_another_clone_finds_what_one_has_compiled_until_a_kernel_changes(tmp_path: Path) -> None:
    first, second, cache = clone(tmp_path / "first"), clone(tmp_path / "second"), tmp_path / "cache"
    assert found_and_compiled(first, cache) == (0, 1)
    assert found_and_compiled(second, cache) == (1, 0)
    (second / "tasks" / "text" / "ngram_kernels.py").touch()
    assert found_and_compiled(second, cache) == (1, 0), "it is as it was"
    called = second / "tasks" / "text" / "kernels.py"
    called.write_text(called.read_text() + "\nMORE = 1\n")
    assert found_and_compiled(second, cache) == (0, 1), "a kernel may be made of what another file has"
    assert found_and_compiled(first, cache) == (1, 0)
    assert not list(first.rglob("*.nbi"))


def test_where_nothing_can_be_written_it_compiles(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    checkout = clone(tmp_path / "checkout")
    assert found_and_compiled(checkout, tmp_path / "cache" / "in") == (0, 1)


def test_of_processes_that_compile_at_once_none_takes_the_code_of_another(tmp_path: Path) -> None:
    """A kernel has an index, and a file for each signature."""
    wrong = []
    for round_ in range(20):

        def compiled(signature: int, name: str = f"kernel-{round_}") -> None:
            cache: Any = IndexDataCacheFile(str(tmp_path), name, "")  # type: ignore[no-untyped-call]
            cache.save(signature, f"code of {signature}")

        with ThreadPoolExecutor(8) as processes:
            list(processes.map(compiled, range(8)))
        cache: Any = IndexDataCacheFile(str(tmp_path), f"kernel-{round_}", "")  # type: ignore[no-untyped-call]
        wrong += [each for each in range(8) if cache.load(each) not in (None, f"code of {each}")]
        assert any(cache.load(each) for each in range(8))
    assert not wrong


def test_processes_that_begin_together_compile_a_kernel_once(tmp_path: Path) -> None:
    checkout, cache = clone(tmp_path / "checkout"), tmp_path / "cache"
    with ThreadPoolExecutor(3) as processes:
        told = list(processes.map(found_and_compiled, [checkout] * 3, [cache] * 3))
    assert sorted(told) == [(0, 1), (1, 0), (1, 0)]


def test_a_process_that_fails_to_compile_leaves_others_waiting_for_a_while_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(kernel_cache, "folder", lambda: tmp_path)
    caches: list[Any] = [IndexDataCacheFile(str(tmp_path), "kernel", "") for _ in range(2)]  # type: ignore[no-untyped-call]
    with ThreadPoolExecutor(1) as other:
        assert caches[0].load("signature") is None
        kernel_cache._HELD.clear()  # as in another process
        assert other.submit(caches[1].load, "signature").result() is None
    caches[1].save("signature", "code")
    assert caches[0].load("signature") == "code"


@pytest.mark.parametrize(("limit", "left"), [(250, {"b", "c", "new"}), (50, {"new"}), (1000, {"a", "b", "c", "new"})])
def test_what_was_not_used_for_longest_goes_first_and_what_was_used_today_stays(
    limit: int, left: set[str], tmp_path: Path
) -> None:
    for age, name in enumerate(("new", "c", "b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.nbc").write_bytes(b"x" * 80)
        used = (tmp_path / name).stat().st_mtime - age * UNUSED_SECONDS - (10 if age else 0)
        os.utime(tmp_path / name, (used, used))
    make_room(tmp_path, limit)
    assert {path.name for path in tmp_path.iterdir()} == left
