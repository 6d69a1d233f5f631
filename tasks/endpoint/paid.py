"""Answers of an endpoint, kept in the scratch folder as they come, so that a run that goes on pays for none again.

JSON Lines that only grow. A line that a kill cut short is dropped, and its answer asked for again.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from storage.shards.lines import as_line, parse_json


class PaidAnswers:
    """Answers by the digest of what was asked. For several threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._found = _whole(path)
        self._file = path.open("a", encoding="utf-8", newline="\n")
        self._lock = threading.Lock()

    def get(self, asked: str) -> dict[str, Any] | None:
        """What was answered."""
        return self._found.get(asked)

    def keep(self, asked: str, answer: dict[str, Any]) -> None:
        """Write it down at once."""
        with self._lock:
            self._found[asked] = answer
            self._file.write(as_line({"asked": asked, **answer}))
            self._file.flush()

    def total(self, name: str) -> int:
        """The sum of a number over all answers."""
        return sum(int(answer[name]) for answer in self._found.values())

    def __len__(self) -> int:
        return len(self._found)


def _whole(path: Path) -> dict[str, dict[str, Any]]:
    """The answers in a file, which is cut behind its last whole line."""
    found: dict[str, dict[str, Any]] = {}
    if not path.exists():
        return found
    whole = 0
    with path.open("rb+") as file:
        for line in file:
            try:
                answer = parse_json(line) if line.endswith(b"\n") else None
            except ValueError:
                answer = None
            if not isinstance(answer, dict) or "asked" not in answer:
                break
            found[answer.pop("asked")] = answer
            whole += len(line)
        file.truncate(whole)
    return found
