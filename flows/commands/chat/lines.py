"""The lines that a person types or a pipe sends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from storage.errors import ConfigError

HIGHLIGHT, PLAIN = "\001\033[1m\002", "\001\033[0m\002"  # marked for readline as without width


class Lines:
    """Reads lines: at a terminal with editing, and with the messages of this session by the arrow keys. Nothing is
    written to disk."""

    def __init__(self, console: Console) -> None:
        self.by_hand = sys.stdin.isatty() and sys.stdout.isatty()
        self._bold = self.by_hand and console.color_system is not None and not console.no_color
        if self.by_hand:
            import readline

            self._readline = readline
            readline.set_auto_history(False)
            readline.set_completer_delims(" ")
            readline.parse_and_bind("tab: complete")

    def complete(self, words: Sequence[str]) -> None:
        """Let Tab complete these words."""
        if self.by_hand:
            self._readline.set_completer(_completer(words))

    def message(self) -> str:
        """The next message. Raises EOFError at the end, and ConfigError for what is not UTF-8."""
        line = self._read("> ")
        if self.by_hand and line:
            self._readline.add_history(line)
        return line

    def agrees(self, question: str) -> bool:
        """Whether a person answers yes. A pipe does not."""
        return self.by_hand and self._read(f"{question} [y/N] ").lower() in ("y", "yes")

    def _read(self, prompt: str) -> str:
        if self.by_hand:
            return checked_text(input(f"{HIGHLIGHT}{prompt}{PLAIN}" if self._bold else prompt).strip())
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise ConfigError("The input is not UTF-8.", "Write it in UTF-8.") from error
        if not line:
            raise EOFError
        return checked_text(line.strip())


def checked_text(text: str) -> str:
    """A text that can be encoded. Raises ConfigError for another."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError("The message is not UTF-8.", "Write it in UTF-8.") from error
    return text


def _completer(words: Sequence[str]) -> Callable[[str, int], str | None]:
    def completed(begun: str, number: int) -> str | None:
        fitting = [word for word in words if begun and word.startswith(begun)]
        return fitting[number] if number < len(fitting) else None

    return completed
