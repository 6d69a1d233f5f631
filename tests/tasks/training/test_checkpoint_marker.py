"""The marker of a checkpoint: written last, with the digest of every file, checked before anything is opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.errors import TrainingError
from tasks.training.checkpoint_marker import (
    MARKER,
    CheckpointMarker,
    complete_checkpoints,
    flush_and_digest,
    newest_sound,
)


def make(top: Path, step: int, name: str = "checkpoint") -> Path:
    folder = top / f"{name}-{step}"
    (folder / "states").mkdir(parents=True)
    (folder / "weights").write_text(f"weights of {step}")
    (folder / "states" / "of-rank-0").write_text(f"states of {step}")
    CheckpointMarker(identity="mine", step=step, files=flush_and_digest(folder)).write(folder)
    return folder


def test_the_newest_whole_one_is_found_and_half_written_ones_go(tmp_path: Path) -> None:
    assert newest_sound(tmp_path / "none", "mine") == (None, 0)
    for step in (5, 10, 100):
        make(tmp_path, step)
    (tmp_path / "checkpoint-100" / MARKER).unlink()
    (tmp_path / "trainer_state.json").touch()
    assert newest_sound(tmp_path, "mine") == (tmp_path / "checkpoint-10", 10)
    assert list(complete_checkpoints(tmp_path)) == [5, 10]
    assert not (tmp_path / "checkpoint-100").exists()
    with pytest.raises(TrainingError, match="refused"):
        newest_sound(tmp_path, "another")


def test_what_is_no_folder_is_named_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-100"
    plants: list[Callable[[], object]] = [
        lambda: os.mkfifo(path),
        lambda: path.write_text("x"),
        lambda: path.symlink_to(tmp_path.parent),
    ]
    for plant in plants:
        plant()
        with pytest.raises(TrainingError, match="checkpoint-100 is not a checkpoint's folder"):
            newest_sound(tmp_path, "mine")
        path.unlink()


def test_ranks_may_share_the_digests(tmp_path: Path) -> None:
    folder = make(tmp_path, 1)
    shares = [flush_and_digest(folder, rank=rank, ranks=2) for rank in range(2)]
    assert shares[0] | shares[1] == CheckpointMarker.read(folder).files
    assert not shares[0].keys() & shares[1].keys()


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / "weights").write_text("weights of 3"), "weights has changed bytes"),
    (lambda folder: (folder / "weights").write_text("none"), "weights has 4 bytes instead of 12"),
    (lambda folder: (folder / "states" / "of-rank-0").unlink(), "states/of-rank-0 is missing"),
    (lambda folder: (folder / "states" / "of-rank-1").touch(), "states/of-rank-1 is not in complete.json"),
    (lambda folder: (folder / "more").symlink_to(folder.parent), "more is a link"),
    (lambda folder: (folder / MARKER).write_text("{}"), "complete.json is not a valid marker"),
]


@pytest.mark.parametrize(("change", "named"), DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_taken(
    change: Callable[[Path], object], named: str, tmp_path: Path
) -> None:
    first, second = make(tmp_path, 1), make(tmp_path, 2)
    change(second)
    told: list[tuple[int, int, str]] = []
    assert newest_sound(tmp_path, "mine", dropped=lambda *of: told.append(of)) == (first, 1)
    ((step, sound, what),) = told
    assert (step, sound) == (2, 1)
    assert named in what
    assert not second.exists()
    change(first)
    with pytest.raises(TrainingError, match="no earlier one is sound"):
        newest_sound(tmp_path, "mine")
