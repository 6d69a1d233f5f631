"""A row for each measurement, written as soon as it is measured: a run that is cut off still tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Results:
    """Rows at the end of `rows.jsonl` in a folder, and Markdown tables on the terminal, one for each kind of row."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.failed = self.late = 0
        self._columns: tuple[str, ...] = ()
        self._file = (folder / "rows.jsonl").open("a")

    def row(self, section: str, **measured: Any) -> None:
        """Keep a row, and print it, below the names of its columns if they are others than those of the last row."""
        self._keep({"section": section, **measured})
        if tuple(measured) != self._columns:
            self._columns = tuple(measured)
            print("\n" + _line(self._columns) + "\n" + _line(["---"] * len(measured)))
        print(_line([_shown(value) for value in measured.values()]), flush=True)

    def note(self, section: str, sentence: str) -> None:
        """Keep and print what is no measurement."""
        self._keep({"section": section, "note": sentence})
        self._columns = ()
        print(f"\n{section}: {sentence}", flush=True)

    def failure(self, section: str, sentence: str) -> None:
        """Keep and print what went wrong, and count it."""
        self.failed += 1
        self.note(section, sentence)

    def missed(self, section: str, what: str) -> None:
        """Keep and print what time ran out for, and count it."""
        self.late += 1
        self.note(section, f"no time was left for {what}")

    def _keep(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
