"""Commands to a running server, through a socket in its state folder that only its user reaches.

A command is one line of JSON. The answer is a line for each step, then a last one with `done` or `error`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigError, GristmillError, ServerError

if TYPE_CHECKING:
    from tasks.serve.running import Running


log = logging.getLogger("gristmill.serve")
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
        try:
            writer.write(_line(await _answer(running, reader, writer)))
            await writer.drain()
        except ConnectionError:
            pass  # the command was interrupted. What it began goes on
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, str(path), limit=LONGEST)
    path.chmod(0o600)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


async def _answer(running: Running, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, Any]:
    """Obey a command, one at a time, and report its steps. Returns the last line."""
    try:
        asked = json.loads(await reader.readuntil(b"\n"))
        if not isinstance(asked, dict) or asked.get("command") != "swap" or not isinstance(asked.get("release"), str):
            raise ValueError
    except (ValueError, RecursionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return {"error": "The command is not valid.", "remedy": "Use the gristmill that runs the server."}
    async with running.changing:
        say = running.say

        def tell(step: str) -> None:
            say(step)
            writer.write(_line({"step": step}))

        running.say = tell
        try:
            return {"done": await _swap(running, asked)}
        except GristmillError as error:
            log.error("the swap failed: %s", error.message)
            return {"error": error.message, "remedy": error.remedy}
        finally:
            running.say = say


async def _swap(running: Running, asked: Mapping[str, Any]) -> dict[str, str]:
    from tasks.serve.open_models import swap

    name = asked.get("model") or next(iter(running.service.models), "")
    served = await swap(running, str(name), asked["release"])
    return {"model": served.name, "digest": served.digest}


def command(state: Path, **fields: Any) -> Iterator[dict[str, Any]]:
    """Send a command, and yield its steps and its result. Raises ServerError if no server runs, for its error, and if
    it ends before the result."""
    path, answered = state / SOCKET, dict[str, Any]()
    try:
        with socket.socket(socket.AF_UNIX) as connected:
            connected.connect(str(path))
            connected.sendall(_line(fields))
            with connected.makefile("rb") as lines:
                for line in lines:
                    answered = json.loads(line) if line.endswith(b"\n") else {}
                    if "error" in answered:
                        raise ServerError(answered["error"], answered["remedy"])
                    yield answered
    except OSError as error:
        raise ServerError(f"No server uses the state folder {state}: {error.strerror}.", "Name its --state.") from error
    if "done" not in answered:
        raise ServerError("The server ended before it had answered.", "See its log, and start it again.")


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connected:
        try:
            connected.connect(str(path))
        except OSError:
            return False
    return True


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"
