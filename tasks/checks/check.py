"""A check: one line with the subject, its state, the measured value, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Check:
    """The result of a check. `advice` never ends a run: the problem only costs time."""

    name: str
    state: Literal["passed", "advice", "failed"]
    value: str
    remedy: str = ""

    def as_line(self) -> dict[str, Any]:
        """The check as JSON, to send between processes."""
        return asdict(self)


def verdict(name: str, good: bool, value: str, remedy: str) -> Check:
    """A check that passed or failed."""
    return Check(name, "passed" if good else "failed", value, "" if good else remedy)


def advice(name: str, good: bool, value: str, remedy: str) -> Check:
    """A check that passed or gives advice."""
    return Check(name, "passed" if good else "advice", value, "" if good else remedy)
