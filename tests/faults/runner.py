"""`python -m tests.faults.runner`: runs without Prefect, each in a fork of a process that has imported the pipeline.

A line of JSON on standard input is a run: {"store", "overrides", "to", "log", "temporary"}. The answers are
{"pid"} when it begins and {"code"} when it has ended, negative for a signal. A run leads a session of its own, as a
command in a terminal does, and ends as the command line ends: 130, 129 or 143 for an orderly stop, TYPED for an error
that a user can mend. A traceback ends it with 1.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.faults.layer import Layer, announce

TYPED = 64  # an error that a user can mend
MARK = "GRISTMILL_FAULT_RUN"  # inherited by every process of a run


class Runner:
    """The process that forks, seen from the driver. Its runs follow one another."""

    def __init__(self, folder: Path, layer: Layer | None, environment: Mapping[str, str] | None = None) -> None:
        self.folder, self.layer = folder, layer
        self.mark = f"{MARK}={folder}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.runner"],
            env={**os.environ, **(environment or {}), **(layer.environment if layer else {}), MARK: str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, store: str, overrides: list[str], to: str, log: Path, temporary: Path) -> int:
        """Begin a run; returns its process."""
        assert self._process.stdin
        given = {"store": store, "overrides": overrides, "to": to, "log": str(log), "temporary": str(temporary)}
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()
        return int(self._answer()["pid"])

    def wait(self) -> int:
        """The exit code of the run."""
        return int(self._answer()["code"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the runner ended"
        return dict(json.loads(line))

    def others(self) -> list[int]:
        """Every process of a run that lives, but not the runner."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                inherited = (folder / "environ").read_bytes().split(b"\0")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if self.mark.encode() in inherited and state != "Z" and int(folder.name) != self._process.pid:
                found.append(int(folder.name))
        return found

    def close(self) -> None:
        """End it, once its run has ended."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def live(given: dict[str, str]) -> None:
    """One run, in the forked process."""
    from flows.stop import stoppable
    from storage.errors import GristmillError
    from storage.files.disk import DiskFaults
    from tests.pipeline.forked import run

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    log = os.open(given["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["TMPDIR"] = tempfile.tempdir = given["temporary"]
    announce()
    with stoppable() as stop:
        try:
            with DiskFaults():
                run(given["store"], given["overrides"], given["to"])
        except KeyboardInterrupt:
            sys.exit(stop.exit_code)
        except GristmillError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            sys.exit(TYPED)


def main() -> None:
    """Runs as they are asked for, until the end of the input."""
    import flows.diagram.stages  # noqa: F401

    assert threading.active_count() == 1, "a fork would be without the other threads"
    for line in sys.stdin:
        process = multiprocessing.get_context("fork").Process(target=live, args=(json.loads(line),))
        process.start()
        print(json.dumps({"pid": process.pid}), flush=True)
        process.join()
        print(json.dumps({"code": process.exitcode}), flush=True)


if __name__ == "__main__":
    main()
