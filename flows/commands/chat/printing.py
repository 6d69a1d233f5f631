"""Prints an answer as it arrives."""

from __future__ import annotations

import time

from rich.console import Console

from storage.errors import harmless

SILENT = "(nothing: it ended its answer at once)"


class Printed:
    """An answer on a console: without blanks at its ends, and without characters that could steer the terminal. Each is
    replaced by itself, so that it doesn't matter how the answer is cut into parts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._text, self._shown = "", 0
        self._begun, self._first = time.monotonic(), 0.0

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._text.strip()

    @property
    def first_seconds(self) -> float | None:
        """The time to the first token. None if none came."""
        return self._first - self._begun if self._first else None

    @property
    def seconds(self) -> float:
        """The time since the question."""
        return time.monotonic() - self._begun

    def say(self, part: str) -> None:
        """Print the next part."""
        if part and not self._first:
            self._first = time.monotonic()
        self._text += part
        text = self.text
        self._console.file.write(harmless(text[self._shown :]))
        self._console.file.flush()
        self._shown = len(text)

    def end(self) -> None:
        """End the line."""
        self._console.file.write("\n")
        self._console.file.flush()
