"""A check: one line that says what was looked at, how it is, what was measured, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Check:
    """`advice` never ends a run: what it found only costs time."""

    name: str
    state: Literal["passed", "advice", "failed"]
    value: str
    remedy: str = ""

    def as_line(self) -> dict[str, Any]:
        """As it travels between processes."""
        return asdict(self)


def verdict(name: str, good: bool, value: str, remedy: str) -> Check:
    """A check that passed or failed."""
    return Check(name, "passed" if good else "failed", value, "" if good else remedy)


def advice(name: str, good: bool, value: str, remedy: str) -> Check:
    """A check that passed or has a piece of advice."""
    return Check(name, "passed" if good else "advice", value, "" if good else remedy)
