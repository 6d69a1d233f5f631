"""Plants a defect in a copy of the checkout and runs the tests that must notice it there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tasks.text.kernel_cache import COMPILED
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 1200.0  # for the tests of one defect: what hangs is noticed by nobody
FAILED, NO_TESTS = 1, 5  # pytest's exit codes
MAKE_TEST, MAKE_SOAK, NOTHING, STALE = "make test", "make soak", "nothing", "stale"
MARKED = {MAKE_TEST: "not soak", MAKE_SOAK: "soak"}
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-n", "0"]


@dataclass(frozen=True)
class Outcome:
    """Who noticed a defect, by which test first, and how long that took."""

    name: str
    noticed_by: str
    seconds: float
    first: str = ""  # the test that failed, or why there is none


def outcome_of(mutant: Mutant, soak: bool) -> Outcome:
    """Plant a defect and look who notices it; the tests of `make soak` are asked where those of `make test` notice
    nothing, and with `soak` in any case."""
    began = time.monotonic()
    if wrong := problem(mutant, ROOT):
        return Outcome(mutant.name, STALE, 0.0, wrong)
    failed: dict[str, str] = {}  # the first test, by who asks for it
    said = ""
    with copied_checkout() as copy:
        plant(mutant, copy)
        for make, marked in MARKED.items():
            if make == MAKE_SOAK and failed and not soak:
                break
            code, output = pytest(copy, mutant.fails, marked, compiled=is_compiled(mutant.path))
            first = first_failure(output)
            if code == FAILED and first:
                failed[make] = first
            elif code not in (0, NO_TESTS):  # no test failed: it breaks an import, which was not meant, or hangs
                said = f"pytest ended with {code}: {last_line(output)}"
    seconds = time.monotonic() - began
    if not failed:
        return Outcome(mutant.name, NOTHING, seconds, said)
    return Outcome(mutant.name, next(iter(failed)), seconds, "; ".join(failed.values()))


def baseline(mutants: Sequence[Mutant], soak: bool) -> str:
    """What the tests of these defects say where none is planted; nothing if they pass."""
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.fails))
    with copied_checkout() as copy:
        for make in MARKED if soak else (MAKE_TEST,):
            code, output = pytest(copy, tests, MARKED[make], stop=False, patience=PATIENCE_SECONDS * len(mutants))
            if code not in (0, NO_TESTS):
                return output
    return ""


def problem(mutant: Mutant, root: Path) -> str:
    """Why a defect can't be planted; nothing if it can."""
    path = root / mutant.path
    if not path.is_file():
        return f"there is no file {mutant.path}"
    text = path.read_text(encoding="utf-8")
    times = text.count(mutant.before)
    if times != 1:
        return f"its text stands {times} times in {mutant.path}"
    if mutant.before == mutant.after:
        return "it changes nothing"
    return ""


def plant(mutant: Mutant, root: Path) -> None:
    """Write the wrong text. Raises SyntaxError for one that is no Python: no test is needed to notice that."""
    path = root / mutant.path
    text = path.read_text(encoding="utf-8").replace(mutant.before, mutant.after)
    if path.suffix == ".py":
        compile(text, mutant.path, "exec")
    path.write_text(text, encoding="utf-8")


def is_compiled(path: str) -> bool:
    """Whether numba compiles what is there."""
    return any(Path(path).match(pattern) for pattern in COMPILED)


@contextmanager
def copied_checkout() -> Iterator[Path]:
    """A copy of all that git knows or would add, with the data sets beside it; the environment stays the same."""
    with temporary_folder() as folder:
        copy = folder / "checkout"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            source, target = ROOT / name, copy / name
            if os.path.lexists(source):  # else it was deleted, and git not told
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        shared = ROOT.parent / "shared"
        if shared.is_dir():
            (folder / "shared").symlink_to(shared)
        yield copy


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that goes, though what is left of a killed test still writes into it."""
    folder = Path(tempfile.mkdtemp(prefix="gristmill-mutant-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pytest(
    copy: Path,
    tests: Sequence[str],
    marked: str,
    *,
    stop: bool = True,
    compiled: bool = False,
    patience: float = PATIENCE_SECONDS,
) -> tuple[int, str]:
    """The exit code of these tests in a copy, and what they said. What numba compiles of a defect goes with it."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}  # before the checkout that is installed, in children too
    if compiled:
        environment["NUMBA_CACHE_DIR"] = str(copy.parent / "kernels")
    command = [*PYTEST, *(["-x"] if stop else []), "-m", marked, *tests]
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        return -1, f"no end after {patience:.0f} seconds"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, output


def imported_from(copy: Path) -> Path:
    """The folder whose code a child imports in a copy: it must be the copy."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, "-c", "import tasks; print(tasks.__file__)"]
    said = subprocess.run(command, cwd=copy.parent, env=environment, capture_output=True, text=True, check=True)
    return Path(said.stdout.strip()).parents[1]


def first_failure(output: str) -> str:
    """The test that failed first, by the summary; nothing where a file could not be imported at all."""
    for line in output.splitlines():
        kind, _, rest = line.partition(" ")
        if kind in ("FAILED", "ERROR") and rest.startswith("tests/") and "::" in rest.partition(" - ")[0]:
            return rest.partition(" - ")[0]
    return ""


def last_line(output: str) -> str:
    """What was said last."""
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing was said"
