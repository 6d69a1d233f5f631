"""Answers of an endpoint, kept in the scratch folder as they come, so that a resumed run doesn't pay for them again.

The file is append-only JSON Lines. A line that a kill cut short is dropped, and its answer requested again.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from storage.shards.lines import as_line, parse_json


class PaidAnswers:
    """Answers by the digest of their request. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._answers = _complete_lines(path)
        self._file = path.open("a", encoding="utf-8", newline="\n")
        self._lock = threading.Lock()

    def get(self, request: str) -> dict[str, Any] | None:
        """The answer to a request, if it is known."""
        return self._answers.get(request)

    def keep(self, request: str, answer: dict[str, Any]) -> None:
        """Write an answer to the file at once."""
        with self._lock:
            self._answers[request] = answer
            self._file.write(as_line({"asked": request, **answer}))
            self._file.flush()

    def total(self, name: str) -> int:
        """The sum of the number `name` over all answers."""
        return sum(int(answer[name]) for answer in self._answers.values())

    def __len__(self) -> int:
        return len(self._answers)


def _complete_lines(path: Path) -> dict[str, dict[str, Any]]:
    """The answers in a file. Truncates the file after its last complete line."""
    answers: dict[str, dict[str, Any]] = {}
    if not path.exists():
        return answers
    size = 0
    with path.open("rb+") as file:
        for line in file:
            try:
                answer = parse_json(line) if line.endswith(b"\n") else None
            except ValueError:
                answer = None
            if not isinstance(answer, dict) or "asked" not in answer:
                break
            answers[answer.pop("asked")] = answer
            size += len(line)
        file.truncate(size)
    return answers
