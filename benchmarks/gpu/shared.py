"""This side of the process that measures: another one is started where the last ended, and each answer has its time."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.measure import GRACE, Failed, Late, ended

COMMAND = (sys.executable, "-m", "benchmarks.gpu.worker")
ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b")  # the line of a traceback that says what happened


class Shared:
    """A process for one task after another (worker.py), started when it is first needed."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)
        self._process: subprocess.Popen[str] | None = None
        self._said = tempfile.TemporaryFile("a+", errors="replace")  # noqa: SIM115  # as long as this object
        self.started = 0  # processes

    def start(self) -> subprocess.Popen[str]:
        """The process, which may still be importing."""
        if self._process is None:
            self.started += 1
            self._process = subprocess.Popen(
                COMMAND,
                env=self._variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
            )
        return self._process

    def ask(self, module: str, given: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """What a module's `measure` returns. Raises Failed, and Late after so many seconds, the start of a process
        included; the next task has a new process then."""
        began, begun = time.monotonic(), self._process is not None
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        with ended(process, seconds):
            ready = process.stdout.readline()
            told = self._said.seek(0, 2)
            answer = ""
            if ready:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(json.dumps({"module": module, "given": given}) + "\n")
                    process.stdin.flush()
                answer = process.stdout.readline()
            if not answer:
                process.wait()
        if answer:
            found: dict[str, Any] = json.loads(answer)
            return found
        self._forget()
        left = seconds - (time.monotonic() - began)
        if left <= 0:
            raise Late(f"it was ended after {seconds:.0f} s")
        if begun and not ready:  # the last task left something behind
            return self.ask(module, given, left)
        raise Failed(f"exit {process.returncode}: {self._reason(told if ready else 0)}")

    def close(self) -> None:
        """End the process, which waits for a task."""
        if self._process is not None:
            process = self._process
            self._forget()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            process.kill()
        self._said.close()

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None and process.stdout is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()

    def _reason(self, start: int) -> str:
        self._said.seek(start)
        lines = self._said.read().strip().splitlines()
        return ([line for line in lines if ERROR.match(line)] or lines or ["it said nothing"])[-1]
