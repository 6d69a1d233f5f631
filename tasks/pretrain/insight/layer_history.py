"""Reads insight.jsonl incrementally while it grows, and thins it: a row of a deep model takes 100 kB."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KEPT = 200  # rows in memory, evenly spread


class LayerHistory:
    """The layer statistics of a run, by step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.forget()

    def forget(self) -> None:
        """Start over, as the run resumed from an earlier step and truncated the file."""
        self.offset, self.stride, self.count = 0, 1, 0
        self.kept: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """Every n-th row so far, and the newest."""
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            *lines, unfinished = file.read().split(b"\n")
            self.offset = file.tell() - len(unfinished)  # a row still being written is read next time
        for line in lines:
            if self.kept and (self.count - 1) % self.stride:
                self.kept.pop()  # it was kept only as the newest
            self.kept.append(json.loads(line))
            self.count += 1
            if len(self.kept) > KEPT:
                newest = [] if len(self.kept) % 2 else self.kept[-1:]  # every second row has it, or lacks it
                self.kept, self.stride = self.kept[::2] + newest, 2 * self.stride
        return list(self.kept)
