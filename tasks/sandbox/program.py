"""A program with its tests, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tasks.sandbox.config import Isolation

State = Literal["passed", "failed", "timed out", "out of memory", "refused"]
LONGEST = 1_000_000  # characters of a program and its tests, where a model's have thousands


@dataclass(frozen=True)
class Program:
    """Python source, and the source of its tests, which runs afterwards in the same namespace and raises if they
    fail."""

    text: str
    tests: str


@dataclass(frozen=True)
class Outcome:
    """How a program ended. `refused` means that it was too long to be run. `error` is the type of the exception that it
    raised and `message` its text: the program reports both, so don't trust them. `seconds` is wall-clock time."""

    state: State
    isolation: Isolation
    error: str = ""
    message: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the program and its tests ran to their end."""
        return self.state == "passed"

    @property
    def detail(self) -> str:
        """The last line of the traceback, or the reason for its absence. Empty for a program that passed."""
        return ": ".join(part for part in (self.error, self.message) if part)
