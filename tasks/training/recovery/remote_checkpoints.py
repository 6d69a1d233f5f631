"""Checkpoints in the store's bucket: a training that loses its machine goes on, on another one, from the last.

A checkpoint that is whole on the disk is sent by a thread of each rank, which takes its share of the files, while the
training continues. It goes into a folder that its marker's digest names, so that what an earlier attempt left there has
the same bytes. The first rank then looks whether all of it is there, and writes the marker last: without one a
checkpoint does not exist. The log, decisions of healing and snapshots, which a resume needs too, lie beside the folders
by their digests, each sent once.

    checkpoints/<stage>/<key>/step-000000012-0f3a…/…     the files, and remote.json, the marker
    checkpoints/<stage>/<key>/beside/<sha256>

A bucket that fails ends no training: the checkpoint is told to be missing there, and the next one is tried. One that
comes while another is still on its way is left out, on all ranks. What is superfluous on the disk is deleted there too.
No torch here: the stage fetches, before its training starts.
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
NEEDED = (LOG, DECISIONS, "validated-*.json", "snapshots/step-*/*")  # of the scratch folder, by a resume
POLL_SECONDS = 0.2
WHOLE_SECONDS = 1.0  # between two looks whether all parts are there

FOLDER = re.compile(r"step-([0-9]{1,18})-[0-9a-f]+")  # in the bucket


def _check_needed(name: str) -> str:
    """Whoever can write the bucket can write a marker: it may name nothing else of the scratch folder."""
    if not any(PurePosixPath(name).match(pattern) and name.count("/") == pattern.count("/") for pattern in NEEDED):
        raise ValueError(f"{name!r} is nothing that a resume needs")
    return check_name(name)


def _check_folder(name: str) -> str:
    if "/" in name or not fnmatchcase(name, FOLDERS):
        raise ValueError(f"{name!r} is no checkpoint's folder")
    return check_name(name)


Name = Annotated[str, AfterValidator(check_name)]
Needed = Annotated[str, AfterValidator(_check_needed)]
Folder = Annotated[str, AfterValidator(_check_folder)]


class RemoteMarker(BaseModel):
    """A whole checkpoint in the bucket: its step, the name of its folder on a disk, the files in it, and those of the
    scratch folder beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    folder: Folder
    files: Mapping[Name, FileEntry]
    beside: Mapping[Needed, FileEntry]


class RemoteCheckpoints:
    """The checkpoints of one run in the bucket, as one rank sends them; nothing where the store is a folder.

    `keep` and `keep_every` are as on the disk; `tell` gets sentences for the user, of the first rank.
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
        self._given_up = threading.Event()  # what other ranks failed to send
        self._sent = threading.Event()  # this rank's share, or it failed
        self._failed = False
        self.sending: int | None = None  # the step whose files are still read

    def send(self, folder: Path, step: int) -> None:
        """Begin to send a checkpoint that is, or will soon be, whole. Every rank must call it."""
        if not self._spec.remote:
            return
        states = self._ranks.gathered(self._state())
        failed = "failed" in states
        if "sending" in states or ("waiting" in states and not failed):
            if self._ranks.rank == 0:
                self._tell(f"the checkpoint of step {step:,} is not sent: the one before is still on its way")
            return
        self._end(cancel=failed)
        if failed:
            self._ranks.gathered(None)  # the first rank's thread has ended: it deletes nothing of what now begins
        beside = self._copied(step) if self._ranks.rank == 0 else {}
        self._given_up, self._sent, self._failed, self.sending = threading.Event(), threading.Event(), False, step
        self._thread = threading.Thread(target=self._try, args=(folder, step, beside), daemon=True, name="checkpoint")
        self._thread.start()

    def finish(self) -> None:
        """Wait until what is on its way is there, or failed. Every rank must call it."""
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
        """Wait for the thread, which waits for other ranks at most; not for those that failed."""
        if cancel:
            self._given_up.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = self.sending = None

    def _copied(self, step: int) -> dict[str, Path]:
        """What a resume needs besides, by name: copies of what will change meanwhile."""
        scratch, found = self._spec.scratch, {}
        copies = scratch / "sent"
        copies.mkdir(exist_ok=True)
        for pattern in NEEDED:
            for path in sorted(scratch.glob(pattern)):
                name = path.relative_to(scratch).as_posix()
                found[name] = path if "/" in name else Path(shutil.copyfile(path, copies / name))
        return found

    def _try(self, folder: Path, step: int, beside: Mapping[str, Path]) -> None:
        try:
            self._send(folder, step, beside)
        except (StoreError, OSError) as error:
            self._failed = True
            said = error.message if isinstance(error, StoreError) else str(error)
            self._tell(f"the checkpoint of step {step:,} is not in the bucket: {said}")
        finally:
            self._sent.set()
            self.sending = None

    def _send(self, folder: Path, step: int, beside: Mapping[str, Path]) -> None:
        while not (folder / MARKER).exists():  # it is still being written
            if self._given_up.wait(POLL_SECONDS):
                return
        store, top = _opened(self._spec), self._spec.remote
        marker = (folder / MARKER).read_bytes()
        listed = CheckpointMarker.model_validate_json(marker).files
        files = {**listed, MARKER: FileEntry(sha256=hashlib.sha256(marker).hexdigest(), size=len(marker))}
        place = f"{top}/step-{step:09d}-{files[MARKER].sha256[:16]}"
        mine = sorted(files)[self._ranks.rank :: self._ranks.size]
        store.send(place, folder, {name: files[name] for name in mine})
        if self._ranks.rank:
            return
        entries = self._send_beside(store, beside)
        self._sent.set()
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
        """Delete what is superfluous there, and what is later: it is of a course that was left. Markers go first."""
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
        markers = [found for folder in kept if (found := _marker(store, f"{top}/{folder}"))]
        needed = {entry.sha256 for marker in markers for entry in marker.beside.values()}
        for name in listed:
            digest = name.removeprefix(f"{BESIDE}/")
            if digest != name and digest not in needed:
                store.discard(f"{top}/{name}")


def fetch_newest(spec: ChildSpec, tell: Callable[[str], None]) -> None:
    """Put the newest whole checkpoint of the bucket on this disk, with what lies beside it, if there is an older one or
    none here. One that does not arrive as it was sent is told, and the one before is taken.

    A checkpoint of here counts, even an older one, where healing has decided something since: it may have left the
    course of those in the bucket.
    """
    if not spec.remote:
        return
    store = _opened(spec)
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
    wanted = [(f"{spec.remote}/{name}/{file}", draft / "files" / file, entry) for file, entry in marker.files.items()]
    wanted += [
        (f"{spec.remote}/{BESIDE}/{entry.sha256}", draft / "beside" / file, entry)
        for file, entry in marker.beside.items()
    ]
    with suppress(FileNotFoundError):
        if all(store.receive(source, target, entry) for source, target, entry in wanted):
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
    found = FOLDER.fullmatch(name.partition("/")[0])
    return int(found[1]) if found else None


def _sizes(files: Mapping[str, FileEntry]) -> dict[str, int]:
    return {name: entry.size for name, entry in files.items()}


@functools.cache
def _store(url: str) -> Store:
    return Store(url)


def _opened(spec: ChildSpec) -> Store:
    return _store(spec.runtime.store)
