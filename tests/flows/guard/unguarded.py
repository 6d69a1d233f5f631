"""Prefect's plain server, for tests that show what the guard prevents."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.guard.password import CLIENT
from flows.server import start, stop, wait
from tasks.children.launchers import free_port


@contextmanager
def unguarded(home: Path) -> Iterator[dict[str, str]]:
    """The environment of clients of Prefect's plain server."""
    port = str(free_port())
    there = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "PREFECT_HOME": str(home), "PREFECT_API_URL": f"{there}/api", CLIENT: ""}
    command = "import uvicorn; from prefect.server.api.server import create_app; uvicorn.run(create_app(), port=%s)"
    with tempfile.TemporaryFile() as said:
        process = start([sys.executable, "-c", command % port], environment, said)
        try:
            wait(there, process, said, environment)
            yield environment
        finally:
            stop([process])
