"""The ledgers that tests use: SQLite, Prefect's embedded Redis, and a Redis server where one is installed.

As a program it is another process of a server: `python -m tests.tasks.serve.access.ledgers LEDGER COUNT LIMITS…` waits
for a line, asks for COUNT requests of a key with each of the limits and settles none. It prints how many were admitted
and waits to be killed. A key is named as its limits.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from burner_redis import BurnerRedis  # type: ignore[import-untyped]

from tasks.serve.access import AccessRefused, Limits, Price
from tasks.serve.access.ledger import Ledger, Request
from tasks.serve.access.quota import Ask, Grant
from tasks.serve.access.redis_ledger import RedisLedger, connect
from tasks.serve.access.sqlite_ledger import SqliteLedger

PROCESS = "a-process"


class Embedded:
    """The client of an embedded Redis, as far as the ledger uses one. It runs every script twice, as a client does that
    lost the first answer."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._database = BurnerRedis()

    def register_script(self, text: str) -> Callable[..., Any]:
        """A script that runs when it is called."""
        script = self._database.register_script(text)

        async def run(arguments: tuple[object, ...]) -> Any:
            await script(args=list(arguments))
            return await script(args=list(arguments))

        return lambda args: self._runner.run(run(args))

    def close(self) -> None:
        """End the loop."""
        self._runner.close()


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """The URL of a Redis server of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = shutil.which("redis-server")
    assert program is not None
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as server:
        try:
            for _ in range(100):
                with socket.socket() as client:
                    if client.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}"
        finally:
            server.kill()


def open_at(place: str) -> Ledger:
    """The ledger at a URL of Redis or in a folder."""
    return RedisLedger(connect(place, None)) if place.startswith("redis:") else SqliteLedger(Path(place))


def micros() -> int:
    """The time now."""
    return time.time_ns() // 1000


def request(key: str, at: int, process: str = PROCESS) -> Request:
    """A request of a key at a time."""
    return Request(secrets.randbits(63), key, at, process)


def ask(prompt: int = 0, completion: int = 0, price: Price = Price(0, 0)) -> Ask:  # noqa: B008, it is frozen
    """What a request needs."""
    return Ask(prompt, completion, price)


def attempt(ledger: Ledger, one: Request, limits: Limits, needed: Ask) -> Grant | AccessRefused:
    """Admit a request, or hand back its refusal."""
    try:
        return ledger.admit(one, limits, needed)
    except AccessRefused as refused:
        return refused


def main(place: str, count: str, *limits: str) -> None:
    """Ask for many requests once told to, say how many were admitted, and keep them running."""
    ledger, process = open_at(place), secrets.token_hex(4)
    ledger.beat(process, micros())
    print("ready", flush=True)
    sys.stdin.readline()
    for key in limits:
        asked = Limits.model_validate_json(key)
        granted = [attempt(ledger, request(key, micros(), process), asked, ask(3, 4)) for _ in range(int(count))]
        print(sum(isinstance(one, Grant) for one in granted), flush=True)
    time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
