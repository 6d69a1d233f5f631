"""Atomic checkpoints, read back before they count, from which a resume is exact.

The engine writes weights and optimizer states into a folder named by the step. Everything is flushed and read back
from the disk (saved_states.py), and the marker (tasks/training/checkpoint_marker.py) is written last. The marker also
names the layout of the states, so that no engine loads states that it can't read.

No random-generator state is saved because training uses none: the order of the data is a function of the step
(the number of samples is the loader's whole state), and so is the learning rate. Anything else an engine must remember,
it saves itself. Files may be written while training continues (engines/async_save.py). Then the marker is too, and
errors are raised at the next save or at the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import Divergence, TrainingError
from tasks.pretrain.checkpoints.saved_states import NOT_FINITE, UNREADABLE, merge, problems, read_back
from tasks.pretrain.engines.trained import trained_sizes
from tasks.training.checkpoint_marker import (
    CheckpointMarker,
    Ranks,
    SingleProcess,
    complete_checkpoints,
    damage,
    dropped_note,
    flush_and_digest,
    newest_sound,
    refusal,
    remove,
)
from tasks.training.retention import superfluous
from tasks.training.states_only import refusing_code

if TYPE_CHECKING:
    from tasks.pretrain.engines.base import Engine
    from tasks.pretrain.world import World
    from tasks.training.recovery.remote_checkpoints import RemoteCheckpoints

LIBRARIES = ("torch", "deepspeed")


class PretrainMarker(CheckpointMarker):
    """A marker with what a resume of pretraining needs besides."""

    samples: int  # of the loader, served so far
    layout: Mapping[str, int | str]  # of the states in the files (`Engine.layout`)
    versions: Mapping[str, str]  # of the libraries that wrote them


class Checkpoints:
    """The checkpoints of one run in its own folder: the last `keep` of them, and one every `keep_every` steps.

    With `asynchronous` they are written while training continues. `tell` gets sentences for the user. `dropped` gets
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
        asynchronous: bool = False,
        tell: Callable[[str], None] = lambda sentence: None,
        dropped: Callable[[int, int, str], None] = lambda step, sound, damage: None,
        remote: RemoteCheckpoints | None = None,
    ) -> None:
        self.folder, self.identity, self.world = folder, identity, world
        self.keep, self.keep_every, self.asynchronous, self.tell = keep, keep_every, asynchronous, tell
        self.dropped, self.remote = dropped, remote
        self._checked: int | None = None  # the step whose files' digests are known to be right
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def latest(self) -> int:
        """The step to resume from, 0 without a checkpoint. Removes half-written and damaged ones, and raises, as
        `newest_sound` does. Every rank must call it."""
        _, step = newest_sound(self.folder, self.identity, ranks=self.world, dropped=self._drop)
        self._checked = step
        return step

    def save(self, engine: Engine, step: int, *, last: bool = False) -> None:
        """Write the checkpoint of `step`, and remove older ones that need not be kept. It is sent to the bucket while
        training continues, but the `last` one before a stop is waited for. Every rank must call it.

        Raises TrainingError for files that don't hold what they should, of this save or of the previous one.
        """
        self.finish()  # at most one save is in flight
        folder = self._folder(step)
        if self.world.first and folder.exists():
            shutil.rmtree(folder)
        self.world.wait()
        marker = PretrainMarker(
            identity=self.identity,
            step=step,
            files={},
            samples=engine.config.samples(step),
            layout=dict(engine.layout),
            versions=_versions(),
        )
        expected = trained_sizes(engine.spec.shape, engine.config, engine.spec.base)
        if self.asynchronous:
            writing = engine.save_async(folder)
            # Read-back and marker wait in a thread of the first rank only: its Future is done when all ranks have
            # written. The others wait for their own part.
            if self.world.first:
                self._pending = self._writer.submit(self._complete_async, writing, folder, marker, expected)
            else:
                self._pending = writing
        else:
            engine.save(folder)
            self.world.wait()
            self._complete(folder, marker, expected, self.world)
            self.world.wait()
        if self.remote is not None:
            if last:
                self.remote.finish()  # while another is being sent, this one would be skipped
            self.remote.send(folder, step)
            if last:
                self.finish()
                self.remote.finish()

    def finish(self) -> None:
        """Wait for a checkpoint that is still being written, and raise its error. Every rank must call it."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()
            self.world.wait()

    def load(self, engine: Engine, step: int) -> None:
        """Put weights and optimizer states of `step` into the engine. Every rank must call it.

        Raises TrainingError for states saved in another layout, for files that differ from the marker, before any is
        opened, and for pickles of anything but states, before any is run.
        """
        folder = self._folder(step)
        fault = None if self._checked == step else damage(folder, ranks=self.world)
        if fault is not None:
            raise TrainingError(
                f"The checkpoint {folder} is damaged ({fault}).", f"Delete {folder} to resume from the previous one."
            )
        marker = PretrainMarker.read(folder)
        for name in {**marker.layout, **engine.layout}:
            if marker.layout.get(name) != engine.layout.get(name):
                was = "deepspeed" if marker.layout.get(name) == "deepspeed" else "ddp or fsdp"
                raise refusal(folder, f"runtime.pretrain.engine {was}")
        installed = _versions()
        for library, was in marker.versions.items():
            now = installed.get(library, was)  # a library that is gone did not matter to this engine
            if was != now and self.world.first:
                self.tell(f"the checkpoint of step {step:,} was saved by {library} {was}, and this is {now}")
        with refusing_code(folder):
            engine.load(folder)

    def _folder(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"

    def _complete_async(
        self, writing: Future[None], folder: Path, marker: PretrainMarker, expected: dict[str, tuple[int, ...]]
    ) -> None:
        writing.result()  # the first rank's is done when all are
        self._complete(folder, marker, expected, SingleProcess())

    def _complete(
        self, folder: Path, marker: PretrainMarker, expected: Mapping[str, tuple[int, ...]], ranks: Ranks
    ) -> None:
        """Flush and read back, each rank its share. Then the first rank writes the marker and removes older ones."""
        files = flush_and_digest(folder, rank=ranks.rank, ranks=ranks.size)
        try:
            findings = read_back(folder, marker.layout, expected, rank=ranks.rank, ranks=ranks.size)
            unreadable = ""
        except UNREADABLE as error:
            findings, unreadable = {}, f"a file can't be read ({type(error).__name__}: {error})"
        shares = ranks.gathered((files, findings, unreadable))
        # A file that can't be read explains every parameter missing from it, so only those files are reported then
        wrong = [share[2] for share in shares if share[2]] or problems(merge(share[1] for share in shares), expected)
        if wrong:
            more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            if all(one.endswith(NOT_FINITE) for one in wrong):
                step = int(folder.name.rpartition("-")[2])
                raise Divergence(
                    f"After step {step:,} {'; '.join(wrong[:3])}{more}.",
                    "Lower pretrain.learning_rate (muon_learning_rate too, if set) or lengthen the warmup, and rerun.",
                    step=step,
                    rows=[],
                )
            raise TrainingError(
                f"The checkpoint {folder} does not hold what was saved: {'; '.join(wrong[:3])}{more}.",
                "Check the disk and its log. A rerun resumes from the previous checkpoint.",
            )
        if ranks.rank:
            return
        all_files = {name: entry for share in shares for name, entry in share[0].items()}
        marker.model_copy(update={"files": all_files}).write(folder)
        complete = complete_checkpoints(self.folder)
        sending = self.remote.sending if self.remote is not None else None
        for old in superfluous(list(complete), newest=self.keep, every=self.keep_every):
            if old != sending:  # its files are being read
                remove(complete[old])

    def _drop(self, step: int, sound: int, damage: str) -> None:
        self.tell(dropped_note(step, sound, damage))
        self.dropped(step, sound, damage)


def _versions() -> dict[str, str]:
    """The versions of the libraries that write checkpoints, if installed."""
    return {library: version(library) for library in LIBRARIES if find_spec(library)}
