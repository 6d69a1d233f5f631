"""Reads the audit log: the lines of all processes, in the order of time, and which of them were asked for."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from tasks.serve.watch.audit import FOLDER, SUFFIX

LOOK_SECONDS = 0.3


@dataclass(frozen=True)
class Wanted:
    """Conditions on a line. None and "" mean any. `since` and `until` are times as in the log, `until` excluded."""

    key: str = ""
    status: str = ""  # 429, or 4xx
    rule: str = ""
    model: str = ""
    id: str = ""
    since: str = ""
    until: str = ""

    def __contains__(self, record: dict[str, Any]) -> bool:
        """Whether a line meets all of them."""
        status = str(record.get("status"))
        return (
            (not self.since or record["time"] >= self.since)
            and (not self.until or record["time"] < self.until)
            and (not self.key or record.get("key") == self.key)
            and (not self.status or status == self.status or f"{status[:1]}xx" == self.status.lower())
            and (not self.model or record.get("model") == self.model)
            and (not self.id or record.get("id") == self.id)
            and (not self.rule or any(guard["rule"] == self.rule for guard in record.get("guards", ())))
        )


def records(
    folder: Path, wanted: Wanted, *, follow: bool = False, damaged: Callable[[Path], None] = lambda path: None
) -> Iterator[dict[str, Any]]:
    """The lines of the log in a state folder that are wanted, oldest first. With `follow` also those that are written
    from now on, without end. `damaged` is called for each line that is not one of ours."""
    read = dict[Path, int]()
    while True:
        paths = sorted((folder / FOLDER).glob(f"*{SUFFIX}"))
        since = wanted.since[:10].replace("-", "")
        for _, of_day in groupby((path for path in paths if path.name[:8] >= since), key=lambda path: path.name[:8]):
            new = [_records(path, read, damaged) for path in of_day]
            yield from (record for record in heapq.merge(*new, key=lambda one: one["time"]) if record in wanted)
        if not follow:
            return
        time.sleep(LOOK_SECONDS)


def _records(path: Path, read: dict[Path, int], damaged: Callable[[Path], None]) -> Iterator[dict[str, Any]]:
    """The lines of a file after those that were read before. The last one may still be unfinished."""
    try:
        file = path.open("rb")
    except FileNotFoundError:  # deleted in the meantime
        return
    with file:
        file.seek(read.get(path, 0))
        for line in file:
            if not line.endswith(b"\n"):
                return
            read[path] = read.get(path, 0) + len(line)
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                record = None
            if isinstance(record, dict) and isinstance(record.get("time"), str):
                yield record
            else:
                damaged(path)
