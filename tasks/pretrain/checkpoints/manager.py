"""Checkpoints that are whole or do not exist, that were read back before they count, and whose resume is exact.

The engine writes weights and optimizer states into a folder named by the step; everything is flushed and read back
from the disk (saved_states.py); a marker with the size and digest of each file is written last. A folder without its
marker is what a kill left, and is removed. One whose files are no longer what the marker says is named, and the one
before it taken. The marker names the run that it belongs to: on other data, another tokenizer or another config a
resume is refused. It tells the engine's layout too, so that states are never loaded by what can't read them.

No state of a random generator is kept because training draws nothing: the order of the data is a function of the step
(its samples are the loader's whole state), and so is the learning rate. What else an engine must remember, it saves
itself. Files may be written behind while training goes on (background.py); then the marker is too, and what went
wrong there is raised at the next save or at the end.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from storage.digests import FileEntry, file_digest
from storage.errors import TrainingError
from storage.flush import flush
from tasks.pretrain.checkpoints.saved_states import UNREADABLE, expected_shapes, merge, problems, read_back
from tasks.training.retention import MARKER, remove, superfluous, tag, whole_steps

if TYPE_CHECKING:
    from tasks.pretrain.engines import Engine
    from tasks.pretrain.world import World

LIBRARIES = ("torch", "deepspeed")
T = TypeVar("T")


class Checkpoints:
    """The checkpoints of one run in a folder of its own: the last `keep` of them, and one every `keep_every` steps.

    `behind` has those engines write while training goes on that can. `tell` gets a sentence worth a line; `dropped`
    the step of a damaged checkpoint, that of the sound one before it, and the damage.
    """

    def __init__(
        self,
        folder: Path,
        identity: str,
        *,
        world: World,
        keep: int = 2,
        keep_every: int | None = None,
        behind: bool = False,
        tell: Callable[[str], None] = lambda sentence: None,
        dropped: Callable[[int, int, str], None] = lambda step, sound, damage: None,
    ) -> None:
        self.folder, self.identity, self.world = folder, identity, world
        self.keep, self.keep_every, self.behind, self.tell = keep, keep_every, behind, tell
        self.dropped = dropped
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def latest(self) -> int:
        """The step to go on from, 0 without a checkpoint; what a kill left half-written is removed, and so is a
        damaged one that has a sound one before it. Every rank must call it.

        Raises TrainingError for a checkpoint of another run, and where there are only damaged ones.
        """
        if self.world.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.glob("step-*"):  # DeepSpeed puts a script of its own beside them
                if not (path / MARKER).is_file():
                    shutil.rmtree(path)
        self.world.wait()
        damaged: list[tuple[int, str]] = []
        for step in reversed(self._gathered(whole_steps(self.folder))[0]):  # a host may not yet see what another does
            folder = self.folder / tag(step)
            damage = self._damage(folder)
            if damage is None:
                if self._marker(folder)["identity"] != self.identity:
                    raise self._refused(folder, "other data, another tokenizer or another config")
                self._drop_damaged(damaged, step)
                return step
            damaged.append((step, damage))
        if damaged:
            step, damage = damaged[0]
            folder = self.folder / tag(step)
            raise TrainingError(
                f"The checkpoint {folder} is damaged ({damage}), and there is no sound one before it.",
                f"Delete {self.folder} to begin anew, and look at the disk.",
            )
        return 0

    def save(self, engine: Engine, step: int) -> None:
        """Write the checkpoint of `step`; of the older ones those stay that are to be kept. Every rank must call it.

        Raises TrainingError for files that don't hold what they should, now or of the save before.
        """
        self.finish()
        folder = self.folder / tag(step)
        if self.world.first and folder.exists():
            shutil.rmtree(folder)
        self.world.wait()
        marker = {
            "identity": self.identity,
            "step": step,
            "samples": engine.config.samples(step),
            "layout": dict(engine.layout),
            "versions": {library: version(library) for library in LIBRARIES},
        }
        expected = expected_shapes(engine.spec.shape)
        if self.behind:
            writing = engine.save_behind(folder)
            if self.world.first:
                self._pending = self._writer.submit(self._complete_behind, writing, folder, marker, expected)
            else:
                self._pending = writing
            return
        engine.save(folder)
        self.world.wait()
        self._complete(folder, marker, expected, self.world.rank, self.world.size, self._gathered)
        self.world.wait()

    def finish(self) -> None:
        """Wait for what is still being written behind, and raise what went wrong there. Every rank must call it."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()
            self.world.wait()

    def load(self, engine: Engine, step: int) -> None:
        """Put weights and optimizer states of `step` into the engine.

        Raises TrainingError for states that were saved in another layout.
        """
        folder = self.folder / tag(step)
        marker = self._marker(folder)
        layout = marker["layout"]
        for name in {**layout, **engine.layout}:
            if layout.get(name) != engine.layout.get(name):
                raise self._refused(folder, f"{name.replace('_', ' ')} {layout.get(name)}")
        for library, was in marker["versions"].items():
            if was != version(library) and self.world.first:
                self.tell(f"step {step:,} was saved by {library} {was}, and goes on with {version(library)}")
        engine.load(folder)

    def _complete_behind(
        self, writing: Future[None], folder: Path, marker: dict[str, Any], expected: dict[str, tuple[int, ...]]
    ) -> None:
        writing.result()  # the first rank's is done when all are
        self._complete(folder, marker, expected, 0, 1, lambda value: [value])

    def _complete(
        self,
        folder: Path,
        marker: dict[str, Any],
        expected: Mapping[str, tuple[int, ...]],
        rank: int,
        ranks: int,
        gathered: Callable[[Any], list[Any]],
    ) -> None:
        """Flush and read back (each of the ranks its share), write the marker, drop older checkpoints."""
        files: dict[str, dict[str, Any]] = {}
        for path in _files(folder)[rank::ranks]:
            flush(path)
            entry = FileEntry(sha256=file_digest(path), size=path.stat().st_size)
            files[path.relative_to(folder).as_posix()] = entry.model_dump()
        try:
            found = read_back(folder, marker["layout"], expected, rank=rank, ranks=ranks)
            unreadable = ""
        except UNREADABLE as error:
            found, unreadable = {}, f"a file can't be read ({type(error).__name__}: {error})"
        shares = gathered((files, found, unreadable))
        wrong = [share[2] for share in shares if share[2]] or problems(merge(share[1] for share in shares), expected)
        if wrong:
            more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise TrainingError(
                f"The checkpoint {folder} does not hold what was saved: {'; '.join(wrong[:3])}{more}.",
                "Look at the disk and its log; a rerun goes on from the checkpoint before.",
            )
        if rank:
            return
        marker["files"] = {name: entry for share in shares for name, entry in share[0].items()}
        draft = folder / f"{MARKER}.draft"
        draft.write_text(json.dumps(marker))
        flush(draft)
        draft.rename(folder / MARKER)
        flush(folder)
        for old in superfluous(whole_steps(self.folder), newest=self.keep, every=self.keep_every):
            remove(self.folder, old)

    def _damage(self, folder: Path) -> str | None:
        """What is wrong with a checkpoint's files, None for nothing. Ranks share the reading, all know the answer."""
        try:
            files = self._marker(folder)["files"]
            mine = sorted(files)[self.world.rank :: self.world.size]
            found = [(name, _file_damage(folder / name, FileEntry(**files[name]))) for name in mine]
            named = [f"{name} {damage}" for name, damage in found if damage]
        except (ValueError, KeyError, OSError) as error:
            named = [f"{MARKER} or what it names can't be read: {error}"]
        return next((damage for share in self._gathered(named) for damage in share), None)

    def _drop_damaged(self, damaged: list[tuple[int, str]], sound: int) -> None:
        self.world.wait()
        if not self.world.first:
            return
        for step, damage in damaged:
            self.tell(f"{tag(step)} is damaged ({damage}): going on from {tag(sound)}")
            self.dropped(step, sound, damage)
            remove(self.folder, step)

    def _gathered(self, value: T) -> list[T]:
        """Each rank's value, on every rank."""
        if self.world.size == 1:
            return [value]
        values: list[Any] = [None] * self.world.size
        torch.distributed.all_gather_object(values, value)
        return values

    def _marker(self, folder: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((folder / MARKER).read_text())
        return found

    def _refused(self, folder: Path, what: str) -> TrainingError:
        return TrainingError(
            f"The checkpoint {folder} was made with {what}: going on from it is refused.",
            f"Run with what it was made with, or delete {self.folder} to begin anew.",
        )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _file_damage(path: Path, entry: FileEntry) -> str | None:
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != entry.size:
        return f"has {path.stat().st_size:,} bytes instead of {entry.size:,}"
    return None if file_digest(path) == entry.sha256 else "has changed bytes"
