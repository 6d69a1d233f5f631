"""The marker that makes a checkpoint whole: written last, it names the run, the step and the digest of every file.

A folder without a marker was left half-written by a kill. One whose files are not exactly those of its marker is
damaged. Checkpoints contain pickles, so nothing in one is opened before `newest_sound` or `damage` has checked its
digests. A marker is not signed and could be replaced together with the files, so states_only.py also keeps pickles from
running code. A checkpoint of another run is refused. No torch here: the stage reads markers too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict

from storage.digests import FileEntry, file_digest
from storage.errors import TrainingError
from storage.files.flush import flush

MARKER = "complete.json"
FOLDERS = "*-[0-9]*"  # of checkpoints: the name ends in the step

T = TypeVar("T")


class CheckpointMarker(BaseModel):
    """The metadata of a whole checkpoint. Trainers may add fields in a subclass."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    identity: str  # of the run
    step: int
    files: Mapping[str, FileEntry]  # all but the marker, by posix path relative to the folder

    def write(self, folder: Path) -> None:
        """Mark the checkpoint as whole. Its files must already be flushed to disk (`flush_and_digest`)."""
        draft = folder / f"{MARKER}.draft"
        draft.write_text(self.model_dump_json())
        flush(draft)
        draft.rename(folder / MARKER)
        flush(folder)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The marker of a whole checkpoint. Raises OSError or ValueError if it is missing or can't be read."""
        return cls.model_validate_json((folder / MARKER).read_bytes())


class Ranks(Protocol):
    """The processes that share the reading of checkpoints. All must make the same calls."""

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""

    @property
    def size(self) -> int:
        """The number of processes."""

    def gathered(self, value: T) -> list[T]:
        """Each rank's value, on every rank."""


@dataclass(frozen=True)
class SingleProcess:
    """One process, which reads everything itself."""

    rank: int = 0
    size: int = 1

    def gathered(self, value: T) -> list[T]:
        return [value]


def flush_and_digest(folder: Path, *, rank: int = 0, ranks: int = 1) -> dict[str, FileEntry]:
    """Flush this rank's share of a checkpoint's files to disk. Returns their entries for the marker's `files`."""
    entries = {}
    for name in sorted(_names(folder))[rank::ranks]:
        path = folder / name
        flush(path)
        entries[name] = FileEntry(sha256=file_digest(path), size=path.stat().st_size)
    return entries


def complete_checkpoints(top: Path) -> dict[int, Path]:
    """The folders of the whole checkpoints below `top`, by step, in order. Their files are not checked."""
    folders = {int(path.parent.name.rpartition("-")[2]): path.parent for path in top.glob(f"{FOLDERS}/{MARKER}")}
    return dict(sorted(folders.items()))


def newest_sound(
    top: Path,
    identity: str,
    *,
    ranks: Ranks | None = None,
    dropped: Callable[[int, int, str], None] = lambda step, sound, damage: None,
) -> tuple[Path | None, int]:
    """The newest sound checkpoint in a folder and its step, or (None, 0). Every file of it has been checked.

    Removes half-written checkpoints, and damaged ones that are newer than the sound one. Calls `dropped` for each
    damaged one, with its step, that of the sound one, and the damage. Every one of the `ranks` must call this.

    Raises TrainingError for a checkpoint of another run, for something else in a checkpoint's place, and if all are
    damaged.
    """
    ranks = ranks or SingleProcess()
    if ranks.rank == 0:
        top.mkdir(parents=True, exist_ok=True)
        for folder in top.glob(FOLDERS):
            if not (folder / MARKER).is_file():
                if folder.is_symlink() or not folder.is_dir():
                    raise TrainingError(f"{folder} is not a checkpoint's folder.", "Delete it and run again.")
                shutil.rmtree(folder)
    # The first rank's list counts for all: another host may not see the folder's newest state yet
    complete = ranks.gathered(complete_checkpoints(top) if ranks.rank == 0 else {})[0]
    damaged: list[tuple[int, str]] = []
    for step, folder in reversed(complete.items()):
        what = damage(folder, ranks=ranks)
        if what is not None:
            damaged.append((step, what))
            continue
        if CheckpointMarker.read(folder).identity != identity:
            raise refusal(folder, "other data, another model, tokenizer or config, or its marker was changed")
        ranks.gathered(None)  # all ranks have read the marker before anything is removed
        if ranks.rank == 0:
            for late, what in damaged:
                dropped(late, step, what)
                remove(complete[late])
        return folder, step
    if damaged:
        step, what = damaged[0]
        raise TrainingError(
            f"The checkpoint {complete[step]} is damaged ({what}), and no earlier one is sound.",
            f"Delete {top} to start from scratch, and check the disk.",
        )
    return None, 0


def dropped_note(step: int, sound: int, damage: str) -> str:
    """The note of a run that skips a damaged checkpoint."""
    return f"the checkpoint of step {step:,} is damaged ({damage}): resuming from step {sound:,}"


def resumed_note(step: int) -> str:
    """The note of a run that resumes a training."""
    return f"resuming from the checkpoint of step {step:,}"


def damage(folder: Path, *, ranks: Ranks | None = None) -> str | None:
    """What is wrong with a checkpoint's files, or None: exactly the files of the marker must be there, as it says.

    The ranks share the reading, and all get the same answer.
    """
    ranks = ranks or SingleProcess()
    try:
        files = CheckpointMarker.read(folder).files
        damages = [f"{path.name} is a link" for path in sorted(folder.rglob("*")) if path.is_symlink()]
        damages += [f"{name} is not in {MARKER}" for name in sorted(_names(folder) - files.keys())]
        damages += _damages(folder, {name: files[name] for name in sorted(files)[ranks.rank :: ranks.size]})
    except ValueError:
        damages = [f"{MARKER} is not a valid marker"]
    except OSError as error:
        damages = [f"{MARKER} or a file that it names can't be read: {error}"]
    return next((what for share in ranks.gathered(damages) for what in share), None)


def remove(folder: Path) -> None:
    """Remove a checkpoint, its marker first: a kill in between must not leave a marker without its files."""
    (folder / MARKER).unlink()
    shutil.rmtree(folder)


def refusal(folder: Path, what: str) -> TrainingError:
    """The error for a checkpoint that can't be resumed from."""
    return TrainingError(
        f"The checkpoint {folder} was made with {what}: resuming from it is refused.",
        f"Run with the same inputs and settings as before, or delete {folder.parent} to start from scratch.",
    )


def _names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {MARKER}


def _damages(folder: Path, entries: Mapping[str, FileEntry]) -> Iterable[str]:
    for name, entry in entries.items():
        path = folder / name
        if not path.is_file():
            yield f"{name} is missing"
        elif path.stat().st_size != entry.size:
            yield f"{name} has {path.stat().st_size:,} bytes instead of {entry.size:,}"
        elif file_digest(path) != entry.sha256:
            yield f"{name} has changed bytes"
