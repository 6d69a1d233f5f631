"""The marker that makes a checkpoint whole: written last, it names the run, the step and the digest of every file.

A folder without a marker is what a kill left half-written. One whose files are not exactly those of its marker is
damaged. Checkpoints hold pickles, so nothing in one is opened before `newest_sound` or `damage` has checked its
digests. A marker is not signed, and could be replaced together with them: states_only.py keeps pickles from running
code besides. A checkpoint of another run is refused. No torch here: the stage looks at markers too.
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
    files: Mapping[str, FileEntry]  # by posix path relative to the folder; all but the marker

    def write(self, folder: Path) -> None:
        """Mark the checkpoint as whole. Its files must already be on the disk (`flush_and_digest`)."""
        draft = folder / f"{MARKER}.draft"
        draft.write_text(self.model_dump_json())
        flush(draft)
        draft.rename(folder / MARKER)
        flush(folder)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The marker of a whole checkpoint. Raises OSError and ValueError where there is none that can be read."""
        return cls.model_validate_json((folder / MARKER).read_bytes())


class Ranks(Protocol):
    """The processes that share the reading of checkpoints. All must make the same calls."""

    @property
    def rank(self) -> int:
        """This process among them, from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

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
    """Flush this rank's share of a checkpoint's files to disk, and digest them: the marker's `files`."""
    entries = {}
    for name in sorted(_names(folder))[rank::ranks]:
        path = folder / name
        flush(path)
        entries[name] = FileEntry(sha256=file_digest(path), size=path.stat().st_size)
    return entries


def complete_checkpoints(top: Path) -> dict[int, Path]:
    """The folders of the whole checkpoints below `top`, by their steps, in order. None is looked into."""
    found = {int(path.parent.name.rpartition("-")[2]): path.parent for path in top.glob(f"{FOLDERS}/{MARKER}")}
    return dict(sorted(found.items()))


def newest_sound(
    top: Path,
    identity: str,
    *,
    ranks: Ranks | None = None,
    dropped: Callable[[int, int, str], None] = lambda step, sound, damage: None,
) -> tuple[Path | None, int]:
    """The newest sound checkpoint in a folder and its step, or (None, 0); every file of it has been checked.

    Half-written checkpoints are removed, and so are damaged ones that are newer than the sound one; `dropped` is called
    with the step of each, that of the sound one, and the damage. Every one of the `ranks` must call this.

    Raises TrainingError for a checkpoint of another run, for what lies there without being one, and where all are
    damaged.
    """
    ranks = ranks or SingleProcess()
    if ranks.rank == 0:
        top.mkdir(parents=True, exist_ok=True)
        for folder in top.glob(FOLDERS):
            if not (folder / MARKER).is_file():
                if folder.is_symlink() or not folder.is_dir():
                    raise TrainingError(f"{folder} is no checkpoint's folder.", "Delete it and run again.")
                shutil.rmtree(folder)
    complete = ranks.gathered(complete_checkpoints(top) if ranks.rank == 0 else {})[
        0
    ]  # another host may not see the folder's newest state yet
    damaged: list[tuple[int, str]] = []
    for step, folder in reversed(complete.items()):
        found = damage(folder, ranks=ranks)
        if found is not None:
            damaged.append((step, found))
            continue
        if CheckpointMarker.read(folder).identity != identity:
            raise refusal(folder, "other data, another model, tokenizer or config, or its marker was changed")
        ranks.gathered(None)
        if ranks.rank == 0:
            for late, what in damaged:
                dropped(late, step, what)
                remove(complete[late])
        return folder, step
    if damaged:
        step, what = damaged[0]
        raise TrainingError(
            f"The checkpoint {complete[step]} is damaged ({what}), and there is no sound one before it.",
            f"Delete {top} to start from scratch, and check the disk.",
        )
    return None, 0


def dropped_note(step: int, sound: int, damage: str) -> str:
    """What a run says of a checkpoint that it leaves out."""
    return f"the checkpoint of step {step:,} is damaged ({damage}): resuming from step {sound:,}"


def resumed_note(step: int) -> str:
    """What a run says of a training that doesn't begin anew."""
    return f"goes on from the checkpoint of step {step:,}"


def damage(folder: Path, *, ranks: Ranks | None = None) -> str | None:
    """What is wrong with a checkpoint's files, None for nothing: each must be there, as its marker says, and no other.

    The ranks share the reading, and all know the answer.
    """
    ranks = ranks or SingleProcess()
    try:
        files = CheckpointMarker.read(folder).files
        found = [f"{path.name} is a link" for path in sorted(folder.rglob("*")) if path.is_symlink()]
        found += [f"{name} is not in {MARKER}" for name in sorted(_names(folder) - files.keys())]
        found += _damages(folder, {name: files[name] for name in sorted(files)[ranks.rank :: ranks.size]})
    except ValueError:
        found = [f"{MARKER} is not as a checkpoint's is written"]
    except OSError as error:
        found = [f"{MARKER} or what it names can't be read: {error}"]
    return next((what for share in ranks.gathered(found) for what in share), None)


def remove(folder: Path) -> None:
    """Remove a checkpoint: its marker first, so that a kill in between leaves no whole one with files missing."""
    (folder / MARKER).unlink()
    shutil.rmtree(folder)


def refusal(folder: Path, what: str) -> TrainingError:
    """The error for a checkpoint that can't be resumed from."""
    return TrainingError(
        f"The checkpoint {folder} was made with {what}: resuming from it is refused.",
        f"Run with what it was made with, or delete {folder.parent} to start from scratch.",
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
