"""A few faults of every storm; `python -m tests.faults` has the others."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from profiles.stage_names import STAGE_NAMES
from tests.faults.__main__ import ON, scenes
from tests.faults.layer import compiler
from tests.faults.scene import Undisturbed
from tests.faults.storm import at_every_commit, drawn, storm, undisturbed

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C compiler for the layer between runs and files")
SEED = 7


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed(tmp_path_factory.mktemp("undisturbed"), STAGE_NAMES[:5])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed(tmp_path_factory.mktemp("undisturbed"))


def meet(base: Undisturbed, where: str, folder: Path, count: int) -> None:
    """So many faults strike, and after none of them is anything wrong."""
    kinds, _ = ON[where]
    struck = 0
    with scenes(where, folder, 1) as places:
        for fault in storm(base, places, drawn(base, kinds, SEED, itertools.count(1))):
            assert not fault.problems, f"number {fault.number}, {fault.stage}, {fault.kind.name}\n{fault.log}"
            struck += fault.struck
            if struck >= count:
                break


@pytest.mark.soak
@pytest.mark.parametrize(("where", "count"), [("disk", 4), ("bucket", 3)])
def test_a_run_that_meets_a_fault_loses_nothing_and_ends_with_the_same_bytes(
    where: str, count: int, base: Undisturbed, tmp_path: Path
) -> None:
    meet(base, where, tmp_path, count)


@pytest.mark.soak
def test_a_kill_at_each_commit_of_a_stage(base: Undisturbed, tmp_path: Path) -> None:
    with scenes("disk", tmp_path, 1) as places:
        met = list(storm(base, places, at_every_commit(base, ["tokenize"])))
    assert len(met) > 30
    assert not [(fault.number, fault.problems) for fault in met if fault.problems]


@pytest.mark.soak
@pytest.mark.parametrize(("where", "count"), [("disk", 40), ("bucket", 20), ("command", 10)])
def test_so_it_is_in_every_stage(where: str, count: int, whole: Undisturbed, tmp_path: Path) -> None:
    meet(whole, where, tmp_path, count)
