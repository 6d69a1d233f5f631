"""Answers of an endpoint, kept in the scratch folder as they come, so that a resumed run doesn't pay for them again.

The file is append-only JSON Lines. A line that a kill cut short is dropped, and its answer requested again. Memory
holds only the places of answers, as there may be millions.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from storage.artifact import Artifact
from storage.errors import DamagedArtifact
from storage.shards.lines import as_line, parse_json

ANSWERS = "answers"  # the part of an artifact with all answers, by the keys of their requests
KEPT = "answers.jsonl"  # in the scratch folder, as they come


class _Place(NamedTuple):
    path: Path
    start: int
    size: int


class KnownAnswers:
    """Answers by the digest of their request, in files that are only read. Safe to use from several threads."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._others = {request: place for path in paths for request, _, place in _complete_lines(path)}

    def get(self, request: str) -> dict[str, Any] | None:
        """The answer to a request, if it is known."""
        place = self._place(request)
        if place is None:
            return None
        try:
            with place.path.open("rb") as file:
                file.seek(place.start)
                answer: dict[str, Any] = parse_json(file.read(place.size))
        except FileNotFoundError:  # another's, which was collected meanwhile
            return None
        return {name: value for name, value in answer.items() if name != "asked"}

    def _place(self, request: str) -> _Place | None:
        return self._others.get(request)


class PaidAnswers(KnownAnswers):
    """Answers that come, and those in files of `others`, which are only read."""

    def __init__(self, path: Path, others: Iterable[Path] = ()) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = threading.Lock()
        super().__init__(others)
        self._totals = Counter[str]()
        self._own: dict[str, _Place] = {}
        self._end = 0
        for request, answer, place in _complete_lines(path):
            self._add(request, answer, place)
        with path.open("ab") as file:
            file.truncate(self._end)
        self._file = path.open("ab")

    def keep(self, request: str, answer: dict[str, Any]) -> None:
        """Write an answer to the file at once."""
        line = as_line({"asked": request, **answer}).encode(errors="replace")
        with self._lock:
            self._file.write(line)
            self._file.flush()
            self._add(request, answer, _Place(self.path, self._end, len(line)))

    def total(self, name: str) -> int:
        """The sum of the number `name` over the answers in the file."""
        return self._totals[name]

    def has_paid(self, request: str) -> bool:
        """Whether an answer is in the file itself, not in one of `others`."""
        return request in self._own

    def __len__(self) -> int:
        return len(self._own)

    def _place(self, request: str) -> _Place | None:
        return self._own.get(request) or super()._place(request)

    def _add(self, request: str, answer: dict[str, Any], place: _Place) -> None:
        self._totals.update({name: value for name, value in answer.items() if isinstance(value, int)})
        self._own[request] = place
        self._end = place.start + place.size


def answers_in(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(request, answer) of each complete line of a file, which may be being written."""
    return ((request, answer) for request, answer, _ in _complete_lines(path))


def known_answers(
    artifacts: Iterable[Artifact], unfinished: Iterable[Path], told: Callable[[str], None]
) -> Iterator[Path]:
    """The files with answers of artifacts of the stage, and of scratch folders of `unfinished` ones. One that has
    changed bytes is reported to `told`, and not used. Of equal files there is one."""
    known: set[str] = set()
    for artifact in artifacts:
        files = artifact.manifest.files if artifact.manifest else {}
        mine = (name for name in files if name.startswith(f"{ANSWERS}/") and files[name].sha256 not in known)
        for name in sorted(mine):
            try:
                path = artifact.file(name)
                if hashlib.sha256(path.read_bytes()).hexdigest() == files[name].sha256:
                    known.add(files[name].sha256)
                    yield path
                    continue
            except (DamagedArtifact, OSError):
                pass
            told(f"{artifact.location}/{name} is gone or has changed bytes: its answers aren't used")
    yield from (path for folder in unfinished if (path := folder / KEPT).exists())


def _complete_lines(path: Path) -> Iterator[tuple[str, dict[str, Any], _Place]]:
    """(request, answer, place) of each line of a file, up to the first that isn't complete."""
    if not path.exists():
        return
    start = 0
    with path.open("rb") as file:
        for line in file:
            try:
                answer = parse_json(line) if line.endswith(b"\n") else None
            except ValueError:
                return
            if not isinstance(answer, dict) or "asked" not in answer:
                return
            yield answer.pop("asked"), answer, _Place(path, start, len(line))
            start += len(line)
