"""A command at a pseudo-terminal, with a person who reads and types."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[4]
SECONDS = 120.0  # for a busy machine
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"
STYLES = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?2004[hl]")  # colours, and readline's bracketed paste


class Terminal:
    """A running `gristmill` command. `said` is all that it printed."""

    def __init__(self, *words: str, cwd: Path = ROOT) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "TERM": "xterm"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *words],
            cwd=cwd,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=_in_front,
        )
        os.close(theirs)
        self.said, self._read = "", 0
        self._bytes = b""

    def expect(self, text: str) -> str:
        """Wait until this is printed, after what was expected before. Returns the text up to it."""
        deadline = time.monotonic() + SECONDS
        while (found := self.said.find(text, self._read)) < 0:
            assert self._more(deadline), f"{text!r} is missing in {self.said[self._read :]!r}"
        before, self._read = self.said[self._read : found], found + len(text)
        return before

    def press(self, text: str) -> None:
        """Press these keys."""
        os.write(self._ours, text.encode())

    def line(self, text: str) -> None:
        """Type a line at the prompt."""
        self.expect("> ")
        self.press(f"{text}\r")

    def interrupt(self) -> None:
        """Press Ctrl-C at the prompt, once readline waits there: a signal just before is noticed with the next key."""
        self.expect("> ")
        time.sleep(0.5)
        self.press(CTRL_C)

    def end(self) -> int:
        """Wait for the end. Returns the exit status."""
        deadline = time.monotonic() + SECONDS
        while self._more(deadline):
            pass
        return self.process.wait(timeout=SECONDS)

    def _more(self, deadline: float) -> bool:
        """Read what comes next. False at the end, and at the deadline."""
        while time.monotonic() < deadline:
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self._bytes += os.read(self._ours, 65536)
                except OSError:  # the other side is closed
                    return False
                self.said = STYLES.sub("", self._bytes.decode(errors="replace"))
                return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def _in_front() -> None:
    """The terminal's keys are for this process: its Ctrl-C too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which is ignored by what a script starts in its background
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
