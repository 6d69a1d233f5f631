"""A command in a fresh process: CPU seconds of its whole tree, wall seconds, peak memory, and the JSON it printed; and
the corpus that it works on.

Only the standard library is imported: a child's peak memory starts at its parent's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
DATA = ROOT / ".data"
GRACE = 15  # seconds for a process to end its own children
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",  # Arrow's pool listens to it too
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
)


@dataclass(frozen=True)
class Run:
    """What one process took, the time to start included, and the last line that it printed."""

    cpu: float
    wall: float
    peak: int
    result: dict[str, Any]


@dataclass(frozen=True)
class Corpus:
    """A folder of document shards and how much text they hold."""

    folder: Path
    documents: int
    megabytes: float


class Failed(Exception):
    """A measured command ended in an error."""


class Late(Failed):
    """A measured command took longer than it had."""


def corpus(data: Path, megabytes: float, whole: Corpus | None = None) -> Corpus:
    """The corpus of this size, or a part of `whole`; made in another process, to keep this one small."""
    name = f"{megabytes:g}mb" if whole is None else f"{whole.folder.name}-part-{megabytes:g}mb"
    part = [] if whole is None else ["--part-of", str(whole.folder)]
    command = [sys.executable, "-m", "benchmarks.corpus", str(data / name), "--megabytes", str(megabytes), *part]
    subprocess.run(command, cwd=ROOT.parent, stdout=sys.stderr, check=True)
    summary = json.loads((data / name / "corpus.json").read_text())
    return Corpus(data / name, summary["documents"], summary["bytes"] / 1e6)


def positive(text: str) -> float:
    """A number of an option, above zero."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError("give a number above 0")
    return number


def count(text: str) -> int:
    """A whole number of an option, from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("give a whole number from 1 on")
    return number


def corpus_parser(
    description: str | None, *, megabytes: float, text: str = "of UTF-8 text", runs: str = "of each side"
) -> argparse.ArgumentParser:
    """Options of a benchmark over a corpus: how large, how often, where. `text` and `runs` are what help says."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=positive, default=megabytes, help=f"{text} (default {megabytes:g})")
    parser.add_argument("--runs", type=count, default=5, help=f"{runs} (default 5)")
    parser.add_argument("--data", type=Path, default=DATA, help="where the corpus lies")
    return parser


def environment(threads: int) -> dict[str, str]:
    """This process's environment with every known thread pool limited; words hash alike in each run."""
    own = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH")  # the project sets them for its own children
    inherited = {name: value for name, value in os.environ.items() if name not in own}
    limits = {name: str(threads) for name in THREAD_VARIABLES}
    return inherited | limits | {"PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"}


def measure(command: Sequence[str], variables: Mapping[str, str], *, seconds: float | None = None) -> Run:
    """Run a command to its end. Raises Failed with the end of what it said; Late if it takes longer than `seconds`."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
        started = time.perf_counter()
        process = subprocess.Popen(command, env=dict(variables), stdout=said, stderr=complained)
        with ended(process, seconds):
            _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (said, complained):
            file.seek(0)
        lines = said.read().strip().splitlines()
        if seconds is not None and wall >= seconds:
            raise Late(f"it was ended after {seconds:.0f} s")
        if process.returncode != 0 or not lines:
            reason = (complained.read().strip().splitlines() or ["it printed nothing"])[-1]
            raise Failed(f"exit {process.returncode}: {reason}")
    # Of several processes, ru_maxrss is the largest one's
    return Run(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * 1024, json.loads(lines[-1]))


@contextlib.contextmanager
def ended(process: subprocess.Popen[Any], seconds: float | None) -> Iterator[None]:
    """Within it a process runs, which is asked to end after `seconds`, or when this one is interrupted, and ended if it
    does not."""
    late = [threading.Timer(after, os.kill, (process.pid, number)) for after, number in _ends(seconds)]
    for timer in late:
        timer.daemon = True
        timer.start()
    try:
        yield
    except BaseException:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    finally:
        for timer in late:
            timer.cancel()


def _ends(seconds: float | None) -> list[tuple[float, int]]:
    return [] if seconds is None else [(seconds, signal.SIGTERM), (seconds + GRACE, signal.SIGKILL)]


def end_as_interrupted() -> None:
    """SIGTERM ends this process as Ctrl-C does: what it started is ended, and temporary folders are removed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def median(runs: Sequence[Run]) -> Run:
    """The median of each figure; results are the same in every run."""
    return Run(
        statistics.median(run.cpu for run in runs),
        statistics.median(run.wall for run in runs),
        int(statistics.median(run.peak for run in runs)),
        runs[-1].result,
    )
