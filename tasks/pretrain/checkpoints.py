"""Checkpoints that are whole or do not exist, and whose resume is exact.

The engine writes weights and optimizer states into a folder named by the step; a marker is written last, after
everything is on disk. A folder without its marker is what a kill left, and is removed. The marker names the run that
it belongs to: on other data, another tokenizer or another config a resume is refused. It tells the engine's layout too,
so that states are never loaded by what can't read them. No state of a random generator
is kept because training draws nothing: the order of the data is a function of the step.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import TrainingError

if TYPE_CHECKING:
    from tasks.pretrain.engines import Engine
    from tasks.pretrain.world import World

KEPT = 2
MARKER = "complete.json"


class Checkpoints:
    """The checkpoints of one run in a folder of its own."""

    def __init__(self, folder: Path, identity: str, *, world: World) -> None:
        self.folder, self.identity, self.world = folder, identity, world

    def latest(self) -> int:
        """The step to go on from, 0 without a checkpoint; what a kill left half-written is removed.

        Raises TrainingError for a checkpoint of another run.
        """
        if self.world.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.glob("step-*"):  # DeepSpeed puts a script of its own beside them
                if not (path / MARKER).is_file():
                    shutil.rmtree(path)
        self.world.wait()
        steps = whole_steps(self.folder)
        if not steps:
            return 0
        folder = self.folder / _tag(steps[-1])
        if self._marker(folder)["identity"] != self.identity:
            raise self._refused(folder, "other data, another tokenizer or another config")
        return steps[-1]

    def save(self, engine: Engine, step: int) -> None:
        """Write the checkpoint of `step`; older ones than the last two go."""
        folder = self.folder / _tag(step)
        engine.save(folder)
        self.world.wait()
        if self.world.first:
            for path in folder.rglob("*"):
                if path.is_file():
                    _flush(path)
            draft = folder / f"{MARKER}.draft"
            draft.write_text(json.dumps({"identity": self.identity, "step": step, "layout": dict(engine.layout)}))
            _flush(draft)
            draft.rename(folder / MARKER)
            for old in whole_steps(self.folder)[:-KEPT]:
                remove(self.folder, old)
        self.world.wait()

    def load(self, engine: Engine, step: int) -> None:
        """Put weights and optimizer states of `step` into the engine.

        Raises TrainingError for states that were saved in another layout.
        """
        folder = self.folder / _tag(step)
        layout = self._marker(folder)["layout"]
        for name in {**layout, **engine.layout}:
            if layout.get(name) != engine.layout.get(name):
                raise self._refused(folder, f"{name.replace('_', ' ')} {layout.get(name)}")
        engine.load(folder)

    def _marker(self, folder: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((folder / MARKER).read_text())
        return found

    def _refused(self, folder: Path, what: str) -> TrainingError:
        return TrainingError(
            f"The checkpoint {folder} was made with {what}: going on from it is refused.",
            f"Run with what it was made with, or delete {self.folder} to begin anew.",
        )


def whole_steps(folder: Path) -> list[int]:
    """The steps of the whole checkpoints in a folder, in order."""
    return sorted(int(path.parent.name.rpartition("-")[2]) for path in folder.glob(f"step-*/{MARKER}"))


def remove(folder: Path, step: int) -> None:
    """Remove the checkpoint of a step: its marker first, so that a kill in between leaves no half checkpoint."""
    (folder / _tag(step) / MARKER).unlink()
    shutil.rmtree(folder / _tag(step))


def _tag(step: int) -> str:
    return f"step-{step:09d}"


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
