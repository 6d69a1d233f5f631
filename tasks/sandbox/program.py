"""A program with its tests, and how it went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tasks.sandbox.config import Isolation

State = Literal["passed", "failed", "timed out", "out of memory", "refused"]
LONGEST = 1_000_000  # characters of a program and its tests; those of models have thousands


@dataclass(frozen=True)
class Program:
    """Python source, and source of the tests that runs after it in the same namespace and raises if they fail."""

    text: str
    tests: str


@dataclass(frozen=True)
class Outcome:
    """How a program went. `refused`: it was not run, because it is too long. `error` is the type of what it raised and
    `message` its text, both told by the program and so not to be trusted; `seconds` is wall-clock time."""

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
        """The last line of the traceback, or why there is none; empty for a program that passed."""
        return ": ".join(one for one in (self.error, self.message) if one)
