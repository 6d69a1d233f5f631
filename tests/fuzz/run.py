"""Running the cases of a door, each in time and memory: what it raises must be an error that a user can act on.

A door runs in a process of its own, so that one which crashes names its case, too.
"""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from storage.errors import GristmillError
from tests.fuzz.doors import DOORS, Door
from tests.fuzz.mutate import WORDS, mutate

CORPUS = Path(__file__).with_name("corpus")
CASE_SECONDS = 10.0  # of processor time: how much else runs on the machine does not matter
MEMORY = 4 << 30  # bytes of address space beyond what the process has at its start


class Endless(BaseException):
    """A case took too long."""


@dataclass
class Result:
    """How many cases a door has read, and what went wrong: where the input is kept, and how it ended."""

    door: str
    cases: int
    failure: tuple[Path, str] | None


def run_door(name: str, seconds: float, seed: int, found: Path) -> Result:
    """Read the corpus of a door, then mutated inputs for some seconds, in a child process. A failing input is kept in
    the folder `found`."""
    with tempfile.TemporaryDirectory(prefix="gristmill-fuzz-") as folder:
        current, count, told = (Path(folder, part) for part in ("case", "count", "told"))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = _child(DOORS[name], seconds, seed, Path(folder))
            except BaseException:  # noqa: BLE001  # of the door's own seeds
                told.write_text(traceback.format_exc())
            finally:
                os._exit(status)
        deadline = time.monotonic() + seconds + 300
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.02)
        cases = int(count.read_text()) if count.exists() else 0
        if ended[1] == 0:
            return Result(name, cases, None)
        data = current.read_bytes() if current.exists() else b""
        kept = found / name / hashlib.sha256(data).hexdigest()[:12]
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(data)
        how = told.read_text() if told.exists() else f"the process ended with status {ended[1]}"
        return Result(name, cases, (kept, how))


def corpus(door: str) -> list[Path]:
    """The kept inputs of a door."""
    return sorted(path for path in (CORPUS / door).glob("*") if path.is_file())


def _child(door: Door, seconds: float, seed: int, folder: Path) -> int:
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    signal.signal(signal.SIGPROF, _ring)
    inputs = cases(door, seed)
    with suppress(GristmillError):
        door.read(next(inputs), _fresh(folder))  # what it imports is no part of what it may use
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    begin, number = time.monotonic(), 0
    must = len(door.seeds()) + len(corpus(door.name))
    for number, data in enumerate(inputs, 1):
        if number >= must and time.monotonic() - begin > seconds:
            break
        (folder / "case").write_bytes(data)
        try:
            signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
            door.read(data, _fresh(folder))
        except GristmillError:
            pass
        except BaseException:  # noqa: BLE001  # whatever it is, it is the finding
            (folder / "told").write_text(traceback.format_exc())
            return 1
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            (folder / "count").write_text(str(number))
    return 0


def cases(door: Door, seed: int) -> Iterator[bytes]:
    """The door's own inputs, its corpus, and then without end what becomes of both; the same for the same seed."""
    known = [*door.seeds(), *(path.read_bytes() for path in corpus(door.name))]
    yield from known
    words = (*WORDS, *door.words)
    draw = Random(f"{seed} {door.name}")
    while True:
        yield mutate(draw, draw.choice(known), known, words)


def _fresh(folder: Path) -> Path:
    """A folder for a case. What is in it is the door's to write over: making a new one each time takes longer."""
    place = folder / "door"
    place.mkdir(exist_ok=True)
    return place


def _ring(number: int, frame: object) -> None:
    raise Endless(f"not done after {CASE_SECONDS:.0f} s of work")
