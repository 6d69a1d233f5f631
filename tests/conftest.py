"""What every test shares: no network, no telemetry, a Prefect home of its own, and real data where it lies."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from storage.files.cache import cache_folder
from tests import allowance

# Kernels are compiled once a machine, not once a session
os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder() / "kernels"))

# A process of a test finds our modules compiled, wherever they may be written
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Before anything imports prefect or a Hugging Face library: they read these once.
_HOME = tempfile.mkdtemp(prefix="gristmill-tests-")
os.environ |= {
    "PREFECT_HOME": _HOME,
    "PREFECT_LOCAL_STORAGE_PATH": f"{_HOME}/results",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "XDG_CACHE_HOME": f"{_HOME}/cache",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Set by scikit-learn when a test imports it: children of later tests would have another server
    "KMP_DUPLICATE_LIB_OK": "True",
    "KMP_INIT_AT_FORK": "FALSE",
}

# On a machine that is busy an example may take long: no property here is one of time. `make test` draws the same
# examples each time, so that it tells of a change; `make soak` explores.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeat", settings.get_profile("explore"), derandomize=True)
settings.load_profile("repeat")

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_configure(config: pytest.Config) -> None:
    """Tell what each file costs."""
    config.pluginmanager.register(allowance)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """The same name in each worker for a case of bytes: gzip's, for one, hold the time."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that may take long first, everything else in its order. All but the named cases of a test that is
    `soak_but` are soak."""
    for item in items:
        mark = item.get_closest_marker("soak_but")
        if mark and isinstance(item, pytest.Function) and item.callspec.id not in mark.args:
            item.add_marker("soak")
    items.sort(key=lambda item: -allowance.of(item.nodeid))  # so that short ones fill what several workers leave


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """The path of a set of real data that lies beside the checkout; skips the test, saying so, where it is absent."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"needs the data set {name} beside the checkout")
        return path

    return find
