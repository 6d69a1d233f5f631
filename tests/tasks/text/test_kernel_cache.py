"""Compiled kernels: found by every clone, never another's, and not kept for ever."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

import tasks
from tasks.text import kernel_cache
from tasks.text.kernel_cache import UNUSED_SECONDS, KernelFile, make_room

ROOT = Path(tasks.__file__).parents[1]
CALL = """
import sys
from tasks.text.ngram_kernels import weight_of
assert weight_of(2)
found, compiled = (sum(times.values()) for times in (weight_of.stats.cache_hits, weight_of.stats.cache_misses))
assert ("numba.np.arraymath" in sys.modules) == (compiled > 0), "what kernels are compiled from takes 0.3 s to load"
print(found, compiled)
"""


@pytest.fixture
def kept(tmp_path: Path) -> KernelFile:
    """A kernel whose code for a signature is kept."""
    found = KernelFile(str(tmp_path), "kernel", "")  # type: ignore[no-untyped-call]
    assert found.load("signature") is None
    found.save("signature", "code")
    return found


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
    assert not list(checkout.rglob("*.nb?")), "nothing is left in the checkout, where it would be found too long"


def test_where_the_disk_is_full_it_compiles(kept: KernelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(KernelFile, "_open_for_write", lambda self, path: full(path))
    kept.save("another signature", "other code")
    assert (kept.load("signature"), kept.load("another signature")) == ("code", None)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "half": lambda data: data[: len(data) // 2],
    "a byte less": lambda data: data[:-1],
    "a byte more": lambda data: data + b"x",
    "a byte of the digest": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "the last byte": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "zeros": lambda data: bytes(len(data)),
    "of numba's own format": lambda data: pickle.dumps("0.0") + pickle.dumps(("", {"signature": "elsewhere"})),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_a_damaged_file_is_compiled_again(
    kind: str, damage: Callable[[bytes], bytes], kept: KernelFile, tmp_path: Path
) -> None:
    (path,) = tmp_path.glob(f"*.{kind}")
    path.write_bytes(damage(path.read_bytes()))
    assert kept.load("signature") is None
    kept.save("signature", "new code")
    assert kept.load("signature") == "new code"


def test_a_folder_in_the_place_of_a_file_is_no_code(kept: KernelFile, tmp_path: Path) -> None:
    for path in tmp_path.glob("*.nb?"):
        path.unlink()
        path.mkdir()
    assert kept.load("signature") is None
    kept.save("signature", "code")


def test_of_processes_that_compile_at_once_none_takes_the_code_of_another(tmp_path: Path) -> None:
    """A kernel has an index, and a file for each signature."""
    wrong = []
    for round_ in range(20):

        def compiled(signature: int, name: str = f"kernel-{round_}") -> None:
            cache = KernelFile(str(tmp_path), name, "")  # type: ignore[no-untyped-call]
            cache.save(signature, f"code of {signature}")

        with ThreadPoolExecutor(8) as processes:
            list(processes.map(compiled, range(8)))
        cache = KernelFile(str(tmp_path), f"kernel-{round_}", "")  # type: ignore[no-untyped-call]
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
    caches = [KernelFile(str(tmp_path), "kernel", "") for _ in range(2)]  # type: ignore[no-untyped-call]
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
