"""Azurite, Microsoft's emulator of Azure's storage, to test against where it is installed (`npm install azurite`), and
the environment in which a client finds it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tasks.children.launchers import free_port

# Its account, which is the same everywhere
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # gitleaks:allow
PATIENCE = 60.0  # seconds until it answers


def client_of(address: str) -> dict[str, str]:
    """The environment of a client of the server at an address."""
    account = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={KEY}"
    return {"AZURE_STORAGE_CONNECTION_STRING": f"{account};BlobEndpoint={address}/devstoreaccount1;"}


@contextmanager
def azure_server(folder: Path) -> Iterator[str]:
    """A server that is there within the block; its address. Skips the test where it or its client is not installed."""
    pytest.importorskip("adlfs")
    command = shutil.which("azurite-blob")
    if command is None:
        pytest.skip("azurite is not installed")
    port = free_port()
    arguments = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder), "--skipApiVersionCheck"]
    server = subprocess.Popen([command, *arguments, "--silent", "--disableTelemetry"], env=dict(os.environ))
    try:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
