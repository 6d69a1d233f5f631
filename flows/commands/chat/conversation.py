"""A conversation at a terminal: questions, answers, and the /commands.

Ctrl-C stops an answer and keeps its beginning. A second Ctrl-C, without a message between them, ends the chat.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from flows.commands.chat import rows
from flows.commands.chat.lines import Lines
from flows.commands.chat.printing import SILENT, Printed
from flows.stop import Stop
from flows.tables import Terminal
from storage.errors import ConfigError, GristmillError
from tasks.serve.chat.answerer import Answerer, ContextFull, Ended, Manner

COMMANDS = {
    "/help": "list the commands",
    "/system TEXT": "set the system prompt, without TEXT remove it",
    "/temperature X": "set the sampling temperature (0: the likeliest token)",
    "/tokens N": "set the maximum tokens of an answer",
    "/retry": "answer the last message again",
    "/undo": "remove the last message and its answer",
    "/save FILE": "add the conversation to a file, as a row that `download` reads",
    "/load FILE": "continue the last conversation of a file",
    "/clear": "begin again, with the same settings",
    "/stats": "tokens and times of the last answer and of all",
    "/quit": "end the chat, as do Ctrl-D and Ctrl-C twice",
}
HIGHEST_TEMPERATURE = 10.0


class _Quit(Exception):
    """The person ends the chat."""


@dataclass(frozen=True)
class Turn:
    """A message with its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Spent:
    """The cost of an answer."""

    ended: Ended
    first_seconds: float | None
    seconds: float


class Conversation:
    """The turns so far, and the settings of the next answer."""

    def __init__(self, console: Console, answerer: Answerer, manner: Manner, lines: Lines) -> None:
        self.console, self.answerer, self.manner, self.lines = console, answerer, manner, lines
        self.turns: list[Turn] = []
        self._spent: list[Spent] = []
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/system": self._set_system,
            "/temperature": self._set_temperature,
            "/tokens": self._set_tokens,
            "/retry": self._retry,
            "/undo": self._undo,
            "/save": self._save,
            "/load": self._load,
            "/clear": self._clear,
            "/stats": self._stats,
            "/quit": self._quit,
        }
        lines.complete([*self._commands])

    def hold(self, stopped: Stop) -> None:
        """Take messages until the end of the input. Raises GristmillError of a conversation that nobody types, and
        KeyboardInterrupt for a signal to end."""
        if self.lines.by_hand:
            self._note(f"{self.answerer.about}. /help lists the commands.")
            if not self.answerer.streams:
                self._note("Answers come as a whole: this format isn't streamed.")
        interrupted = False
        while True:
            try:
                if line := self.lines.message():
                    interrupted = False
                    self._take(line)
            except (EOFError, _Quit):
                return
            except KeyboardInterrupt:
                if stopped.reason is not None:
                    raise
                self.console.print()
                if interrupted:
                    return
                interrupted = True
                self._note("Ctrl-C again ends the chat.")
            except GristmillError as error:
                if not self.lines.by_hand:
                    raise
                self._show(error)

    def _take(self, line: str) -> None:
        """Follow a command or answer a message."""
        if not line.startswith("/") or line.startswith("//"):
            self._ask(line.removeprefix("/"))
            return
        name, _, rest = line.partition(" ")
        if name not in self._commands:
            raise ConfigError(f"The command {name} is unknown.", "/help lists them. A message begins with // for /.")
        self._commands[name](rest.strip())

    def messages(self, turns: list[Turn]) -> list[dict[str, str]]:
        """The system prompt and these turns."""
        system = [] if self.manner.system is None else [{"role": "system", "content": self.manner.system}]
        said = [
            {"role": role, "content": content}
            for turn in turns
            for role, content in (("user", turn.question), ("assistant", turn.answer))
        ]
        return system + said

    def _ask(self, question: str) -> None:
        """Answer a message, and keep both."""
        try:
            self._answer(self.turns, question)
        except ContextFull as full:
            if not self.turns or not self.lines.by_hand:
                raise
            self._show(full, "")
            if not self.lines.agrees("Drop the oldest turns until it fits?"):
                self._note("Nothing was dropped, and the message wasn't kept. /clear begins again.")
            else:
                self._ask_shortened(question)

    def _ask_shortened(self, question: str) -> None:
        """Answer with as few of the oldest turns dropped as it takes."""
        whole = self.turns
        for dropped in range(1, len(whole) + 1):
            try:
                self._answer(whole[dropped:], question)
            except ContextFull:
                if dropped == len(whole):
                    raise
                continue
            self._note(f"{dropped} of {len(whole)} earlier turns dropped, the oldest first")
            return

    def _answer(self, turns: list[Turn], question: str) -> None:
        printed, stopped = Printed(self.console), False
        ended = Ended(None)
        try:
            ended = self.answerer.answer(
                [*self.messages(turns), {"role": "user", "content": question}], self.manner, printed.say
            )
        except KeyboardInterrupt:
            stopped = True
        except GristmillError:
            if printed.text:
                printed.end()
            raise
        if printed.text:
            printed.end()
        elif not stopped:
            self._note(SILENT)
        if printed.text or not stopped:
            self.turns = [*turns, Turn(question, printed.text)]
        self._spent.append(Spent(ended, printed.first_seconds, printed.seconds))
        self._remark(ended, stopped, kept=bool(printed.text))

    def _remark(self, ended: Ended, stopped: bool, kept: bool) -> None:
        """A note on an answer that didn't end by itself."""
        if stopped:
            self._note("Stopped." if kept else "Stopped before the first token. The message wasn't kept.")
        elif ended.finish == "length":
            whole = (ended.prompt_tokens or 0) + (ended.tokens or 0)
            if ended.tokens is not None and ended.tokens < self.manner.tokens:
                self._note(f"Cut: the context is full, with {whole:,} tokens.")
            else:
                self._note(f"Cut after {self.manner.tokens:,} tokens. /tokens sets another limit.")
        elif ended.finish == "content_filter":
            self._note("Cut: a guard of the server ended the answer.")
        elif ended.finish is None:
            self._note("Cut: the server ended its answer without a reason.")

    def _retry(self, _: str) -> None:
        if not self.turns:
            raise ConfigError("Nothing to answer again.", "Write one.")
        *before, last = whole = self.turns
        self.turns = before
        try:
            self._ask(last.question)
        except GristmillError:
            self.turns = whole
            raise
        if self.turns == before:  # nothing was kept of it
            self.turns = whole

    def _help(self, _: str) -> None:
        for usage, purpose in COMMANDS.items():
            self.console.print(f"  {usage:<16} {purpose}", markup=False, highlight=False)

    def _set_system(self, text: str) -> None:
        self.manner.system = text or None
        self._note("System prompt set." if text else "System prompt removed.")

    def _set_temperature(self, text: str) -> None:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= HIGHEST_TEMPERATURE:
            raise ConfigError(
                f"The temperature is {text or 'missing'}.", f"Give a number from 0 to {HIGHEST_TEMPERATURE:g}."
            )
        self.manner.temperature = value
        self._note(f"Temperature {value:g}.")

    def _set_tokens(self, text: str) -> None:
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"The number of tokens is {text or 'missing'}.", "Give a whole number from 1.")
        self.manner.tokens = int(text)
        self._note(f"At most {self.manner.tokens:,} tokens of an answer.")

    def _undo(self, _: str) -> None:
        if not self.turns:
            raise ConfigError("Nothing to remove.", "Write one.")
        *self.turns, last = self.turns
        self._note(f"Removed: {last.question[:60]}")

    def _save(self, file: str) -> None:
        if not file or not self.turns:
            raise ConfigError("Nothing to save." if file else "The file is missing.", "/save FILE")
        path = Path(file).expanduser()
        self._note(f"Row {rows.save(path, self.messages(self.turns))} of {path}.")

    def _load(self, file: str) -> None:
        if not file:
            raise ConfigError("The file is missing.", "/load FILE")
        messages = rows.load(Path(file).expanduser())
        system = messages.pop(0)["content"] if messages[0]["role"] == "system" else None
        said = iter([message["content"] for message in messages])
        self.manner.system, self.turns = system, [Turn(question, next(said)) for question in said]
        self._note(f"{len(self.turns)} turns{', with a system prompt' if system else ''}.")

    def _clear(self, _: str) -> None:
        self.turns = []
        self._note("Cleared.")

    def _stats(self, _: str) -> None:
        if not self._spent:
            raise ConfigError("No answer yet.", "Write a message.")
        last, counted = self._spent[-1], [one for one in self._spent if one.ended.tokens is not None]
        parts = [f"prompt {_number(last.ended.prompt_tokens)} tokens", f"answer {_number(last.ended.tokens)} tokens"]
        if last.first_seconds is not None:
            parts.append(f"first token after {last.first_seconds:.2f} s")
        self._note(f"Last answer: {', '.join(parts)}, {_rate([last])} tokens/s")
        tokens = sum(one.ended.tokens or 0 for one in counted)
        self._note(f"All {len(self._spent)} answers: {tokens:,} tokens, {_rate(counted)} tokens/s")

    def _quit(self, _: str) -> None:
        raise _Quit

    def _note(self, text: str) -> None:
        """A line that isn't part of the conversation: on stderr in a pipe."""
        console = self.console if self.lines.by_hand else Terminal(stderr=True)
        console.print(f"[dim]{escape(text)}[/]", highlight=False, soft_wrap=True)

    def _show(self, error: GristmillError, remedy: str | None = None) -> None:
        text = f"{error.message} {error.remedy if remedy is None else remedy}"
        self.console.print(f"[bold red]Error:[/] {escape(text)}", highlight=False, soft_wrap=True)


def _number(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _rate(answers: list[Spent]) -> str:
    """Tokens per second, from the question to the end."""
    seconds = sum(one.seconds for one in answers)
    tokens = sum(one.ended.tokens or 0 for one in answers)
    return f"{tokens / seconds:.1f}" if tokens and seconds else "unknown"
