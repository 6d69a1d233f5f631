"""This machine's copies of artifacts in a bucket: each file is fetched when it is read, and a copy is removed as a
whole.

A file arrives as a draft, is checked against the SHA-256 in its manifest, and only then renamed to its place: it is
there whole or not at all, however many processes need it. They take turns, so that one fetches it and the others find
it. A copy in use stays. If the environment sets a limit, the others are removed, least recently used first.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from storage.damage import differing, local_sizes
from storage.digest_cache import remember, remembered_digests
from storage.digests import FileEntry, file_digest, sums
from storage.errors import DamagedArtifact, make_again
from storage.files import locks
from storage.files.cache import cache_limit
from storage.files.transfer import Transfers
from storage.manifest import MANIFEST, SUMS, Manifest

AT_ONCE = 8  # files: a bucket answers many requests as quickly as one
Heard = Callable[[int, int], None]  # bytes hashed so far, and the maximum


class Copies:
    """The copies below `local` of the artifacts in `remote`, a folder of a bucket."""

    def __init__(self, local: Path, remote: str, transfers: Transfers) -> None:
        self._local, self._remote, self._transfers = local, remote, transfers
        self._used: set[str] = set()  # locations

    def folder(self, location: str) -> Path:
        """The folder of an artifact's copy, which may not exist."""
        return self._local / "artifacts" / location

    def use(self, location: str) -> None:
        """Keep every process from removing this machine's copy of an artifact while this object lives."""
        if location not in self._used:
            weakref.finalize(self, os.close, locks.share(self._lock_of(location)))
            self._used.add(location)
        with suppress(OSError):
            os.utime(self.folder(location) / MANIFEST)

    def bring(self, copy: Copy, names: Iterable[str]) -> None:
        """Fetch those of an artifact's files that are missing here or have other bytes. Raises DamagedArtifact if the
        bucket lacks one or has other bytes."""
        self.use(copy.location)
        wanted = {name: copy.manifest.files[name] for name in names}
        if not copy.wrong(wanted):
            return
        draft = self._local / "work" / f"fetch-{copy.location.replace('/', '-')}"
        with locks.hold(self._local / "locks" / draft.name):  # also keeps a collection from deleting the draft
            wrong = copy.wrong(wanted)
            if not wrong:
                return  # another process was faster
            self._make_room(sum(wanted[name].size for name in wrong))
            shutil.rmtree(draft, ignore_errors=True)
            self._local.chmod(0o700)  # a bucket has no file modes, which would keep removed texts private
            try:
                _describe(copy)
                with ThreadPoolExecutor(AT_ONCE) as pool:
                    arrived = pool.map(lambda name: self._fetch(copy, name, draft / name), wrong)
                    remember({copy.folder / name: wanted[name].sha256 for name in arrived})
            finally:
                shutil.rmtree(draft, ignore_errors=True)

    def _fetch(self, copy: Copy, name: str, draft: Path) -> str:
        entry, target = copy.manifest.files[name], copy.folder / name
        draft.parent.mkdir(parents=True, exist_ok=True)
        try:
            whole = self._transfers.fetch(f"{self._remote}/{copy.location}/{name}", draft, entry)
        except FileNotFoundError as error:
            raise DamagedArtifact(
                f"{copy.location}/{name} is missing in the bucket.", make_again(copy.manifest.stage)
            ) from error
        if not whole:
            faults = differing({name: entry}, {name: draft.stat().st_size}, lambda names: {name: file_digest(draft)})
            raise DamagedArtifact(f"{copy.location}/{next(faults)[1]}.", make_again(copy.manifest.stage))
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.replace(target)
        return name

    def _make_room(self, room: int) -> None:
        """Remove unused copies, least recently used first, until all fit the limit."""
        limit = cache_limit()
        if limit == float("inf"):
            return
        copies: list[tuple[float, int, Path]] = []
        for path in self._local.glob("artifacts/*/*"):
            with suppress(FileNotFoundError):  # removed meanwhile
                size = sum(file.stat().st_size for file in path.rglob("*"))
                copies.append(((path / MANIFEST).stat().st_mtime, size, path))
        taken = room + sum(size for _, size, _ in copies)
        for _, size, path in sorted(copies):
            if taken <= limit:
                return
            with locks.hold_if_free(self._lock_of(f"{path.parent.name}/{path.name}")) as free:
                if free:
                    shutil.rmtree(path, ignore_errors=True)
                    taken -= size

    def _lock_of(self, location: str) -> Path:
        return self._local / "locks" / f"copy-{location.replace('/', '-')}"


class Copy:
    """The copy of one artifact. Call it with names of files to fetch them.

    Each file is hashed before its first use, unless its digest is remembered. `anew` always hashes it. `heard`
    receives the progress of hashing.
    """

    def __init__(self, copies: Copies, manifest: Manifest, location: str, heard: Heard, *, anew: bool) -> None:
        self.manifest, self.location, self.folder = manifest, location, copies.folder(location)
        self._copies, self._heard, self._anew = copies, heard, anew
        self._checked: set[str] = set()
        self._done = 0

    def __call__(self, names: Iterable[str]) -> None:
        new = {*names} - self._checked
        if new:
            self._copies.bring(self, sorted(new))
            self._checked |= new

    def wrong(self, wanted: Mapping[str, FileEntry]) -> list[str]:
        """The files that are missing here or differ. Removes files that don't belong to the artifact, as a reader of
        the whole folder would take them for a part of it."""
        sizes, _ = local_sizes(self.folder) if self.folder.is_dir() else ({}, [])
        for name in sizes.keys() - self.manifest.files.keys() - {MANIFEST, SUMS}:
            if not name.rpartition("/")[2].startswith("."):  # file managers and NFS make these
                (self.folder / name).unlink(missing_ok=True)
        return [name for name, _ in differing(wanted, sizes, self._digests)]

    def _digests(self, names: Iterable[str]) -> dict[str, str]:
        by_path = remembered_digests((self.folder / name for name in names), anew=self._anew, hashed=self._on_hashed)
        return {path.relative_to(self.folder).as_posix(): digest for path, digest in by_path.items()}

    def _on_hashed(self, size: int) -> None:
        self._done += size
        self._heard(self._done, self.manifest.size)


def _describe(copy: Copy) -> None:
    """Write the manifest and the list of files, as in the bucket."""
    copy.folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((SUMS, sums(copy.manifest.files)), (MANIFEST, copy.manifest.to_json())):
        path = copy.folder / name
        if not path.is_file() or path.read_text() != text:
            draft = path.with_name(f".{name}")
            draft.write_text(text)
            draft.replace(path)
