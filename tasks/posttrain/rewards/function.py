"""A user's own reward: a function in a process of its own, which is ended when a call takes too long.

The function gets all answers of a step at once. If that call fails, each answer is given to it by itself, so that a
failure costs only the answers that it is about. The far side is function_process.py.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from storage import errors
from storage.errors import GristmillError, SourceError
from tasks.children.die_with_parent import tied_to
from tasks.posttrain.rewards.config import PythonReward
from tasks.posttrain.rewards.score import Answer, Failed, Value
from tasks.sandbox.inside.settings import receive, send
from tasks.stage.user_function import UserFunction, fingerprints

START_SECONDS = 300.0  # for the imports of the function's file
LATE = 1.0  # seconds beyond those of an `async def`, whose calls end by themselves
GRACE = 5.0  # seconds between the end of a process's socket and its own
MANY = 16  # answers: if the first as many fail one by one, the function is to blame


class FunctionReward:
    """Answers → numbers, by the function. `digests` are those of its source, as in the artifact's key."""

    def __init__(self, config: PythonReward, digests: Mapping[str, str] | None = None) -> None:
        self.config = config
        self.digests = dict(fingerprints(config) if digests is None else digests)
        self._process: UserProcess | None = None

    def __call__(self, answers: Sequence[Answer]) -> Sequence[Value]:
        """The reward of each answer. Raises SourceError for a function that can't be loaded or that fails for many
        answers in a row by themselves, ConfigError for other source than that of the key."""
        together = self._call(answers)
        if not isinstance(together, Failed):
            return together
        values: list[Value] = []
        for answer in answers:
            alone = self._call([answer]) if len(answers) > 1 else together
            values.append(alone if isinstance(alone, Failed) else alone[0])
            if len(values) == MANY:
                self._blame(values)
        return values

    def check(self, answers: Sequence[Answer] = ()) -> None:
        """Load the function, call it with some answers, and end its process. Raises as a call does, and SourceError if
        it fails for each of these answers."""
        self._process = self._started()
        if answers:
            self._blame(self(answers))
        self.close()

    def close(self) -> None:
        """End the function's process. The next call starts another."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _started(self) -> UserProcess:
        return UserProcess(self.config, self.digests, "tasks.posttrain.rewards.function_process", "reward")

    def _call(self, answers: Sequence[Answer]) -> Sequence[Value] | Failed:
        process = self._process = self._process or self._started()
        seconds = self.config.seconds
        if process.loaded["one_by_one"]:
            seconds = -(-len(answers) // self.config.concurrent) * seconds + LATE
        prompts, texts = [answer.prompt for answer in answers], [answer.text for answer in answers]
        rows = [{**answer.fields, "reference": answer.reference} for answer in answers]
        try:
            reply = process.ask([prompts, texts, rows], seconds)
        except TimeoutError:
            self.close()
            return Failed(f"it took longer than {self.config.seconds:g} s")
        if reply is None:
            self._process = None
            return Failed(f"its process ended with {process.end(GRACE)}")
        if "failed" in reply:
            return Failed(reply["failed"])
        return [Failed(why) if why else value for value, why in zip(reply["values"], reply["why"], strict=True)]

    def _blame(self, values: Sequence[Value]) -> None:
        """Raises SourceError if each of these is a failure."""
        reasons = [one.why for one in values if isinstance(one, Failed)]
        if len(reasons) == len(values):
            self.close()
            raise SourceError(
                f"The reward {self.config.where} fails for each of {len(values):,} answers: {reasons[0]}.",
                "Call the function by itself with some answers. It gets prompts, answers and rows, and returns a "
                "number or None for each answer.",
            )


class UserProcess:
    """A process of `module`, with the user's function loaded. `what` that is, is for errors. Raises what the loading
    raises."""

    def __init__(self, config: UserFunction, digests: Mapping[str, str], module: str, what: str) -> None:
        self._channel, other = socket.socketpair()
        self._process = subprocess.Popen(
            tied_to(os.getpid(), [sys.executable, "-m", module, str(other.fileno())]),
            stdin=subprocess.DEVNULL,
            stdout=2,  # its own is that of a training child, which reports to its stage
            pass_fds=[other.fileno()],
            start_new_session=True,
        )
        other.close()
        self._finalizer = weakref.finalize(self, _end, self._process)
        try:
            loaded = self.ask([config.model_dump_json(), dict(digests)], START_SECONDS)
        except TimeoutError:
            loaded = None
        if loaded is None:
            raise SourceError(
                f"The {what} {config.where} can't be loaded: its process ended with {self.end(GRACE)}.",
                "Import its file by itself, to see why.",
            )
        if "error" in loaded:
            kind: type[GristmillError] = getattr(errors, loaded["error"])
            raise kind(loaded["message"], loaded["remedy"])
        self.loaded: dict[str, Any] = loaded

    def ask(self, message: Any, seconds: float) -> Any:
        """The reply, or None if the process is gone. Raises TimeoutError."""
        self._channel.settimeout(seconds)
        try:
            send(self._channel, message)
            return receive(self._channel)
        except TimeoutError:
            raise
        except OSError:
            return None

    def end(self, grace: float = 0.0) -> str:
        """End it, with all that it started, and say by what it ended. One that ends by itself has seconds of grace to
        say so."""
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        self._finalizer()
        code = self._process.returncode
        return f"the signal {signal.Signals(-code).name}" if code < 0 else f"the exit code {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
