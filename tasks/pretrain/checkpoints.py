"""Checkpoints that are whole or do not exist, and whose resume is exact.

DeepSpeed writes weights and optimizer states into a folder named by the step; a marker is written last, after
everything is on disk. A folder without its marker is what a kill left, and is removed. The marker names the run that
it belongs to: on other data, another tokenizer or another config a resume is refused. No state of a random generator
is kept because training draws nothing: the order of the data is a function of the step.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import TrainingError

if TYPE_CHECKING:
    from tasks.pretrain.engine import Engine, World

KEPT = 2
MARKER = "complete.json"


class Checkpoints:
    """The checkpoints of one run in a folder of its own."""

    def __init__(self, folder: Path, identity: str, *, world: World, zero_stage: int) -> None:
        self.folder = folder
        self.world = world
        # Sharded states belong to as many ranks as wrote them
        self.marker = {"identity": identity, "ranks": world.size if zero_stage else 0}

    def latest(self) -> int:
        """The step to go on from, 0 without a checkpoint; what a kill left half-written is removed.

        Raises TrainingError for a checkpoint of another run, or of sharded states of another number of processes.
        """
        if self.world.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.iterdir():
                if not (path / MARKER).is_file():
                    shutil.rmtree(path)
        self.world.wait()
        tags = self._tags()
        if not tags:
            return 0
        found = json.loads((tags[-1] / MARKER).read_text())
        for name, value in self.marker.items():
            if found[name] != value:
                what = (
                    f"{found[name]} processes" if name == "ranks" else "other data, another tokenizer or another config"
                )
                raise TrainingError(
                    f"The checkpoint {tags[-1]} was made with {what}: going on from it is refused.",
                    f"Run with what it was made with, or delete {self.folder} to begin anew.",
                )
        return int(found["step"])

    def save(self, engine: Engine, step: int) -> None:
        """Write the checkpoint of `step`; older ones than the last two go."""
        folder = self.folder / _tag(step)
        engine.deepspeed.save_checkpoint(str(self.folder), tag=folder.name, save_latest=False)
        self.world.wait()
        if self.world.first:
            for path in folder.rglob("*"):
                if path.is_file():
                    _flush(path)
            draft = folder / f"{MARKER}.draft"
            draft.write_text(json.dumps({**self.marker, "step": step}))
            _flush(draft)
            draft.rename(folder / MARKER)
            for old in self._tags()[:-KEPT]:
                (old / MARKER).unlink()  # first, so that a kill in between leaves no half checkpoint
                shutil.rmtree(old)
        self.world.wait()

    def load(self, engine: Engine, step: int) -> None:
        """Put weights and optimizer states of `step` into the engine."""
        path, _ = engine.deepspeed.load_checkpoint(str(self.folder), tag=_tag(step))
        if path is None:
            raise TrainingError(
                f"DeepSpeed found no checkpoint {_tag(step)} in {self.folder}.", f"Delete {self.folder} to begin anew."
            )

    def _tags(self) -> list[Path]:
        return sorted(path.parent for path in self.folder.glob(f"step-*/{MARKER}"))


def _tag(step: int) -> str:
    return f"step-{step:09d}"


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
