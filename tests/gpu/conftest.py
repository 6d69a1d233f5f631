"""Every test here needs a GPU and is skipped without one. GRISTMILL_TEST_DEVICE=cpu runs those that can run on a CPU,
to try the tests themselves. Data in the folder GRISTMILL_TEST_DATA is used again."""

from __future__ import annotations

import os
import shutil

# For deterministic kernels. Read once, by the first of them
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.tokens import is_whole, seal
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World

DEVICE = os.environ.get("GRISTMILL_TEST_DEVICE", "cuda")
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and skip all of them without a GPU."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("gpu")
            if DEVICE == "cuda" and not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="there is no GPU"))


@pytest.fixture(scope="session")
def device() -> str:
    """The device that the tests run on."""
    return DEVICE


@pytest.fixture(scope="session", autouse=True)
def compiled() -> Iterator[None]:
    """Compile everything that should be: torch would silently run the ninth variant of a function eagerly."""
    from torch._dynamo import config

    many = {"recompile_limit": 1000, "accumulated_recompile_limit": 1000, "fail_on_recompile_limit_hit": True}
    with config.patch(many):
        yield


@pytest.fixture
def cuda() -> None:
    """Skip tests of features that a CPU lacks."""
    if DEVICE != "cuda":
        pytest.skip("a CPU has no such thing")


@pytest.fixture(scope="session")
def world(device: str) -> Iterator[World]:
    """A world of one process on the device, for all tests: DeepSpeed keeps its first process group."""
    from tests.tasks.pretrain.tiny_training import alone

    with alone(device) as found:
        yield found


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of token shards and a tokenizer, for all tests."""
    from tests.tasks.pretrain.tiny_training import make_data

    folder = Path(os.environ.get("GRISTMILL_TEST_DATA") or tmp_path_factory.mktemp("data"))
    if not is_whole(folder):
        shutil.rmtree(folder, ignore_errors=True)
        make_data(folder)
        seal(folder)
    return folder


@pytest.fixture
def spec(data: Path) -> TrainSpec:
    """The spec of a training on this data."""
    from tests.tasks.pretrain.tiny_training import make_spec

    return make_spec(data)
