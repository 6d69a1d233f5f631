"""What tests of training share: the inputs of `pretrain`, made once, a spec over shards, and a world of one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from storage.artifact import Artifact

if TYPE_CHECKING:  # they import torch, which not every test needs
    from tasks.pretrain.spec import TrainSpec
    from tasks.pretrain.world import World


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact]:
    """Token shards of two sources, and their tokenizer. Nobody writes into them."""
    from tests.tasks.pretrain.tiny_training import make_data

    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> TrainSpec:
    """The spec of a training with data of its own."""
    from tests.tasks.pretrain.tiny_training import make_spec

    return make_spec(tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A world of one process in this one, for the tests of a module."""
    from tests.tasks.pretrain.tiny_training import alone

    with alone() as found:
        yield found
