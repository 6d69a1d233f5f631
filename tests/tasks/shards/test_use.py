"""The use of resources by workers counts for the stage that they work for, although they outlive it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from storage.store import Store
from tasks.shards import map_shards
from tasks.stage import machine
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of


def burn(shard: int, folder: Path) -> dict[str, int]:
    """Half a CPU second."""
    begun = time.process_time()
    while time.process_time() - begun < 0.5:
        pass
    return {"shard": shard}


@pytest.mark.parametrize("workers", [1, 2])
def test_what_workers_use_is_counted_while_they_run(workers: int, tmp_path: Path) -> None:
    out = Output.at(tmp_path, runtime=runtime_of(workers=workers))
    with open_session(Session(Store(str(tmp_path / "store")), out.runtime, "tiny")):
        before = machine.cpu_seconds()
        map_shards(burn, [0, 1], out, "burn")
        assert 1.0 <= machine.cpu_seconds() - before < 2.5
