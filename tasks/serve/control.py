"""Commands to a running server, through a socket in its state folder that only its user reaches.

A command is one line of JSON. The answer is a line for each step, then a last one with `done` or `error`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigError, GristmillError, ServerError
from tasks.serve.open_models import swap

if TYPE_CHECKING:
    from tasks.serve.server import Running

SOCKET = "control.sock"
LONGEST = 1 << 16  # bytes of a command
LONGEST_PATH = 100  # bytes of a socket's path, by any system


@asynccontextmanager
async def controlled(running: Running, state: Path) -> AsyncIterator[None]:
    """Take commands within the block. Raises ConfigError for a state folder with a long path, or of another server."""
    path = state / SOCKET
    if len(os.fsencode(path.absolute())) > LONGEST_PATH:
        raise ConfigError(
            f"The path of the state folder {state} is too long for a socket.", "Choose a shorter --state."
        )
    if path.exists() and _answers(path):
        raise ConfigError(f"Another server uses the state folder {state}.", "Choose another one with --state.")
    path.unlink(missing_ok=True)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        say = running.say

        def tell(step: str) -> None:
            say(step)
            writer.write(_line({"step": step}))

        try:
            command = json.loads(await reader.readuntil(b"\n"))
            running.say = tell
            writer.write(_line({"done": await _obey(running, command)}))
        except GristmillError as error:
            writer.write(_line({"error": error.message, "remedy": error.remedy}))
        except (ValueError, KeyError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.write(_line({"error": "The command is not valid.", "remedy": ""}))
        finally:
            running.say = say
            with suppress(ConnectionError):
                await writer.drain()
            writer.close()

    server = await asyncio.start_unix_server(answer, str(path), limit=LONGEST)
    path.chmod(0o600)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


async def _obey(running: Running, command: Mapping[str, Any]) -> Any:
    if command["command"] == "swap":
        names = list(running.service.models)
        served = await swap(running, str(command.get("model") or names[0]), str(command["release"]))
        return {"model": served.name, "digest": served.digest}
    raise ValueError("unknown command")


def command(state: Path, **fields: Any) -> Iterator[dict[str, Any]]:
    """Send a command, and yield its steps and its result. Raises ServerError if no server runs, and for its error."""
    path = state / SOCKET
    try:
        with socket.socket(socket.AF_UNIX) as connected:
            connected.connect(str(path))
            connected.sendall(_line(fields))
            with connected.makefile("rb") as lines:
                for line in lines:
                    answered = json.loads(line)
                    if "error" in answered:
                        raise ServerError(answered["error"], answered["remedy"])
                    yield answered
    except OSError as error:
        raise ServerError(f"No server uses the state folder {state}: {error.strerror}.", "Name its --state.") from error


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connected:
        try:
            connected.connect(str(path))
        except OSError:
            return False
    return True


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"
