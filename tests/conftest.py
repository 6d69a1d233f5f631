"""What every test shares: no network, no telemetry, a Prefect home of its own, and real data where it lies."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

# Before anything imports prefect or a Hugging Face library: they read these once.
_HOME = tempfile.mkdtemp(prefix="gristmill-tests-")
os.environ |= {
    "PREFECT_HOME": _HOME,
    "PREFECT_LOCAL_STORAGE_PATH": f"{_HOME}/results",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """The path of a set of real data that lies beside the checkout; skips the test, saying so, where it is absent."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"needs the data set {name} beside the checkout")
        return path

    return find
