"""Checkpoints in the store's bucket: a training that loses its machine resumes on another one, from the last of them.

When a checkpoint is whole on disk, a thread of each rank sends its share of the files, while the training continues.
It goes into a folder named by its marker's digest, so files that an earlier attempt left there have the same bytes. The
first rank then waits until all of it is there, and writes the marker last: without a marker, a checkpoint doesn't
exist. A resume also needs the log, the decisions of healing and snapshots. These are beside the folders, named by their
digests, and each is sent once.

    checkpoints/<stage>/<key>/step-000000012-0f3a…/…     the files, and remote.json, the marker
    checkpoints/<stage>/<key>/beside/<sha256>

A failing bucket doesn't end a training: a note reports the missing checkpoint, and the next one is tried. A checkpoint
that comes while another is still on its way is skipped, on all ranks. Checkpoints that are superfluous on disk are
deleted in the bucket too. No torch here: the stage fetches before its training starts.
"""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from storage.digest_cache import remembered_digest
from storage.digests import FileEntry, file_digest
from storage.errors import StoreError
from storage.files.flush import flush_tree, link_or_copy
from storage.manifest import check_name
from storage.store import Store
from tasks.children.spec import ChildSpec
from tasks.training.checkpoint_marker import FOLDERS, MARKER, CheckpointMarker, Ranks, complete_checkpoints
from tasks.training.retention import superfluous

REMOTE, BESIDE = "remote.json", "beside"
LOG, DECISIONS = "log.jsonl", "healing.json"
NEEDED = (LOG, DECISIONS, "validated-*.json", "snapshots/step-*/*")  # files of the scratch folder for a resume
POLL_SECONDS = 0.2  # between two checks for the marker on disk
WHOLE_SECONDS = 1.0  # between two checks for all files in the bucket

FOLDER = re.compile(r"step-([0-9]{1,18})-[0-9a-f]+")  # in the bucket


def _check_needed(name: str) -> str:
    """Raises ValueError for a file that a resume doesn't need: whoever can write to the bucket can write a marker, and
    must not reach other files of the scratch folder."""
    if not any(PurePosixPath(name).match(pattern) and name.count("/") == pattern.count("/") for pattern in NEEDED):
        raise ValueError(f"{name!r} is not a file that a resume needs")
    return check_name(name)


def _check_folder(name: str) -> str:
    if "/" in name or not fnmatchcase(name, FOLDERS):
        raise ValueError(f"{name!r} is not a checkpoint's folder")
    return check_name(name)


Name = Annotated[str, AfterValidator(check_name)]
Needed = Annotated[str, AfterValidator(_check_needed)]
Folder = Annotated[str, AfterValidator(_check_folder)]


class RemoteMarker(BaseModel):
    """A whole checkpoint in the bucket: its step, the name of its folder on disk, the files in it, and those of the
    scratch folder beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    folder: Folder
    files: Mapping[Name, FileEntry]
    beside: Mapping[Needed, FileEntry]


class RemoteCheckpoints:
    """The checkpoints of one run in the bucket, as one rank sends them. Does nothing if the store is a folder.

    `keep_every` is as on disk. `tell` gets sentences for the user, on the first rank.
    """

    def __init__(
        self,
        spec: ChildSpec,
        ranks: Ranks,
        *,
        keep_every: int | None = None,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._spec, self._ranks, self._tell = spec, ranks, tell
        self._keep, self._keep_every = spec.runtime.training.keep_checkpoints, keep_every
        self._thread: threading.Thread | None = None
        self._given_up = threading.Event()  # set if another rank failed: don't wait for its files
        self._sent = threading.Event()  # set once this rank's share is sent, or has failed
        self._failed = False
        self.sending: int | None = None  # the step whose files are still being read, so they must not be deleted

    def send(self, folder: Path, step: int) -> None:
        """Begin to send a checkpoint that is, or will soon be, whole. Every rank must call it."""
        if not self._spec.remote:
            return
        states = self._ranks.gathered(self._state())  # so that all ranks decide the same
        failed = "failed" in states
        if "sending" in states or ("waiting" in states and not failed):
            if self._ranks.rank == 0:
                self._tell(f"the checkpoint of step {step:,} is not sent: the one before is still on its way")
            return
        self._end(cancel=failed)
        if failed:
            self._ranks.gathered(None)  # wait until the first rank's thread has ended: it could delete new files
        beside = self._copy_changing(step) if self._ranks.rank == 0 else {}
        self._given_up, self._sent, self._failed, self.sending = threading.Event(), threading.Event(), False, step
        self._thread = threading.Thread(target=self._try, args=(folder, step, beside), daemon=True, name="checkpoint")
        self._thread.start()

    def finish(self) -> None:
        """Wait until the checkpoint on its way has arrived or failed. Every rank must call it."""
        if self._thread is None:
            return
        self._sent.wait()
        self._end(cancel="failed" in self._ranks.gathered(self._state()))
        self._ranks.gathered(None)

    def _state(self) -> str:
        if self._thread is None:
            return "none"
        if self._failed:
            return "failed"
        if not self._thread.is_alive():
            return "sent"
        return "waiting" if self._sent.is_set() else "sending"

    def _end(self, *, cancel: bool) -> None:
        """Wait for the thread, which may itself wait for other ranks. With `cancel`, it stops waiting for them."""
        if cancel:
            self._given_up.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = self.sending = None

    def _copy_changing(self, step: int) -> dict[str, Path]:
        """The further files for a resume, by name. Those that may change while they are sent are copied."""
        scratch, paths = self._spec.scratch, {}
        copies = scratch / "sent"
        copies.mkdir(exist_ok=True)
        for pattern in NEEDED:
            for path in sorted(scratch.glob(pattern)):
                name = path.relative_to(scratch).as_posix()
                paths[name] = path if "/" in name else Path(shutil.copyfile(path, copies / name))
        return paths

    def _try(self, folder: Path, step: int, beside: Mapping[str, Path]) -> None:
        try:
            self._send(folder, step, beside)
        except (StoreError, OSError) as error:
            self._failed = True
            reason = error.message if isinstance(error, StoreError) else str(error)
            self._tell(f"the checkpoint of step {step:,} is not in the bucket: {reason}")
        finally:
            self._sent.set()
            self.sending = None

    def _send(self, folder: Path, step: int, beside: Mapping[str, Path]) -> None:
        while not (folder / MARKER).exists():  # the checkpoint is still being written to disk
            if self._given_up.wait(POLL_SECONDS):
                return
        store, top = _store_of(self._spec), self._spec.remote
        marker = (folder / MARKER).read_bytes()
        listed = CheckpointMarker.model_validate_json(marker).files
        files = {**listed, MARKER: FileEntry(sha256=hashlib.sha256(marker).hexdigest(), size=len(marker))}
        place = f"{top}/step-{step:09d}-{files[MARKER].sha256[:16]}"
        mine = sorted(files)[self._ranks.rank :: self._ranks.size]
        store.send(place, folder, {name: files[name] for name in mine})
        if self._ranks.rank:  # the rest is the first rank's
            return
        entries = self._send_beside(store, beside)
        self._sent.set()
        # Wait for the other ranks' files, then write the marker
        while {name: size for name, size in store.sizes(place).items() if name in files} != _sizes(files):
            if self._given_up.wait(WHOLE_SECONDS):
                return
        whole = RemoteMarker(step=step, folder=folder.name, files=files, beside=entries)
        store.write_text(f"{place}/{REMOTE}", whole.model_dump_json())
        self._tidy(store, place)

    def _send_beside(self, store: Store, beside: Mapping[str, Path]) -> dict[str, FileEntry]:
        place, links = f"{self._spec.remote}/{BESIDE}", self._spec.scratch / "sent" / BESIDE
        entries = {
            name: FileEntry(sha256=remembered_digest(path), size=path.stat().st_size) for name, path in beside.items()
        }
        known = store.sizes(place)
        new = {entry.sha256: entry for entry in entries.values() if known.get(entry.sha256) != entry.size}
        shutil.rmtree(links, ignore_errors=True)
        links.mkdir()
        for name, entry in entries.items():
            if entry.sha256 in new and not (links / entry.sha256).exists():
                link_or_copy(beside[name], links / entry.sha256)
        if new:
            store.send(place, links, new)
        shutil.rmtree(links)
        return entries

    def _tidy(self, store: Store, newest: str) -> None:
        """Delete superfluous checkpoints in the bucket, and later ones: the training has gone back before them. Markers
        are deleted first."""
        top, listed = self._spec.remote, store.sizes(self._spec.remote)
        steps: dict[int, set[str]] = {}
        for name in listed:
            if (step := _step_of(name)) is not None:
                steps.setdefault(step, set()).add(name.partition("/")[0])
        last = _step_of(newest.rpartition("/")[2]) or 0
        whole = [step for step in sorted(steps) if step <= last]
        gone = {*superfluous(whole, newest=self._keep, every=self._keep_every), *(steps.keys() - whole)}
        kept = {newest.rpartition("/")[2]}
        for step, folders in steps.items():
            for folder in folders:
                if step in gone or (step == last and folder not in kept):
                    store.discard(f"{top}/{folder}", first=REMOTE)
                else:
                    kept.add(folder)
        markers = [marker for folder in kept if (marker := _marker(store, f"{top}/{folder}"))]
        needed = {entry.sha256 for marker in markers for entry in marker.beside.values()}
        for name in listed:
            digest = name.removeprefix(f"{BESIDE}/")
            if digest != name and digest not in needed:
                store.discard(f"{top}/{name}")


def fetch_newest(spec: ChildSpec, tell: Callable[[str], None]) -> None:
    """Fetch the newest whole checkpoint of the bucket to this disk, with the files beside it, if this disk has only
    older ones or none. If one doesn't arrive as it was sent, `tell` reports it, and the one before is fetched.

    A local checkpoint is kept, even if older, if the decisions of healing differ from those in the bucket: the training
    may have gone back before the bucket's checkpoints.
    """
    if not spec.remote:
        return
    store = _store_of(spec)
    here = max(complete_checkpoints(spec.checkpoints), default=0)
    listed = store.sizes(spec.remote)
    names = {name.partition("/")[0] for name in listed if name.endswith(f"/{REMOTE}") and _step_of(name) is not None}
    for name in sorted(names, reverse=True):
        marker = _marker(store, f"{spec.remote}/{name}")
        if marker is None:
            continue
        if marker.step <= here or (here and not _same_decisions(spec, marker)):
            return
        if _fetch(store, spec, name, marker):
            tell(f"fetched the checkpoint of step {marker.step:,} from the bucket")
            return
        tell(f"the checkpoint of step {marker.step:,} in the bucket is damaged")


def _fetch(store: Store, spec: ChildSpec, name: str, marker: RemoteMarker) -> bool:
    draft = spec.scratch / "fetched"
    shutil.rmtree(draft, ignore_errors=True)
    parts = [(f"{spec.remote}/{name}/{file}", draft / "files" / file, entry) for file, entry in marker.files.items()]
    parts += [
        (f"{spec.remote}/{BESIDE}/{entry.sha256}", draft / "beside" / file, entry)
        for file, entry in marker.beside.items()
    ]
    with suppress(FileNotFoundError):
        if all(store.receive(source, target, entry) for source, target, entry in parts):
            flush_tree(draft)
            for file in marker.beside:
                (spec.scratch / file).parent.mkdir(parents=True, exist_ok=True)
                (draft / "beside" / file).replace(spec.scratch / file)
            target = spec.checkpoints / marker.folder
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            (draft / "files").rename(target)
            shutil.rmtree(draft)
            return True
    return False


def _same_decisions(spec: ChildSpec, marker: RemoteMarker) -> bool:
    here, there = spec.scratch / DECISIONS, marker.beside.get(DECISIONS)
    if not here.exists():
        return there is None
    return there is not None and file_digest(here) == there.sha256


def _marker(store: Store, place: str) -> RemoteMarker | None:
    text = store.read_bytes(f"{place}/{REMOTE}")
    with suppress(ValidationError):
        return None if text is None else RemoteMarker.model_validate_json(text)
    return None


def _step_of(name: str) -> int | None:
    match = FOLDER.fullmatch(name.partition("/")[0])
    return int(match[1]) if match else None


def _sizes(files: Mapping[str, FileEntry]) -> dict[str, int]:
    return {name: entry.size for name, entry in files.items()}


@functools.cache
def _store(url: str) -> Store:
    return Store(url)


def _store_of(spec: ChildSpec) -> Store:
    return _store(spec.runtime.store)
