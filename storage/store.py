"""The store of artifacts: a folder or a bucket, with a single implementation over fsspec.

    artifacts/<stage>/<key>/…       an artifact; it exists if its manifest.json does
    artifacts/<stage>/<key>.2/…     the same key rebuilt (--refresh) with other bytes: nothing is overwritten
    refs/<name>.json                human-readable names with their history
    insight/<stage>/<key>/…         a stage's observations of its run; local disk only, not part of the artifact
    branches/<stage>/<digest>/…     states that several artifacts of a stage may begin from; only in a folder
    locks/  work/                   local disk only: one lock and one working folder per key

A working folder is named by its key and survives kill -9, so that the next run of the same key finds its shards and
checkpoints. In a folder store it is on the store's file system, and publishing is a rename. In a bucket store it is in
a local cache, and publishing is an upload with the manifest last.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from fsspec.implementations.local import LocalFileSystem
from pydantic import TypeAdapter, ValidationError

from storage.artifact import Artifact
from storage.damage import contradictions, find_damage, local_sizes
from storage.digest_cache import remember, remembered_digests
from storage.digests import FileEntry, file_digest, sums
from storage.errors import ConfigError, DamagedArtifact, StoreError, make_again, no_artifact
from storage.files import locks
from storage.files.cache import cache_folder
from storage.files.conditional import AZURE, S3, conditional
from storage.files.copies import Copies, Copy, Heard
from storage.files.disk import open_up
from storage.files.flush import flush, flush_tree
from storage.files.remote import Remote, opened, reaching
from storage.files.shared_locks import SharedLock, SharedLocks
from storage.files.traffic import Traffic
from storage.files.transfer import Transfers
from storage.files.unfinished import UnfinishedUploads
from storage.manifest import FORMAT, MANIFEST, SUMS, Manifest

STORE_FILE = "gristmill.json"
RETIRED = ".retired-"  # begins the names of working folders that nobody uses
CHECKPOINTS = "checkpoints"  # of unfinished trainings, in a bucket
OBJECT_STORES = {*S3, *AZURE, "gs", "gcs"}  # without folders: making one would make a bucket
NO_PATH = (errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
_FORMAT = TypeAdapter(dict[str, int])


class Store:
    """Artifacts by key. `url` is a folder or any fsspec URL, `cache` the local side of a bucket. A `paranoid` store
    hashes every file before each use, even if its inode, size and times have not changed."""

    def __init__(self, url: str, cache: Path | None = None, *, paranoid: bool = False) -> None:
        if not url:
            raise ConfigError(
                "The address of the store is empty.", "Set runtime.store or --store to a folder or a URL."
            )
        fs, self.root = opened(
            url, "The store", "Give a folder, or the URL of a file system that fsspec knows, and install its package."
        )
        self.url, self.paranoid = url, paranoid
        self.is_folder = isinstance(fs, LocalFileSystem)
        protocols = {fs.protocol} if isinstance(fs.protocol, str) else {*fs.protocol}
        self._has_folders = not OBJECT_STORES & protocols
        self.fs: Any = fs if self.is_folder else Remote(fs, url)
        self._conditional = conditional(fs, url, protocols)
        self._is_s3 = bool(S3 & protocols)
        self.uploads = UnfinishedUploads(fs, url) if self._is_s3 else None
        self._held: dict[str, SharedLock] = {}  # by stage-key
        self._transfers = Transfers(self.fs, url, parts=self._is_s3)
        name = hashlib.sha256(url.encode()).hexdigest()[:12]
        self.local = Path(self.root) if self.is_folder else cache or cache_folder() / name
        self._copies = Copies(self.local, f"{self.root}/artifacts", self._transfers)
        self.lock_objects = SharedLocks(self._conditional, self.root, self.local) if self._conditional else None
        try:
            self._open()
            self._transfers.traffic.count_requests_of(fs)
        except (ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in NO_PATH:
                raise
            raise StoreError(f"The store {url} can't be opened: {error}.", "Set runtime.store to a folder.") from error

    def _open(self) -> None:
        if self.is_folder and self.local.exists() and not self.local.is_dir():
            raise StoreError(f"The store {self.url} is a file.", "Set runtime.store to a folder.")
        marker = self.read_bytes(STORE_FILE)
        if marker is not None:
            self._check_format(marker)
        elif self.is_folder and self.local.is_dir():
            self._check_empty()

    def _check_format(self, marker: bytes) -> None:
        try:
            version = _FORMAT.validate_json(marker)["format"]
        except (ValidationError, KeyError) as error:
            raise StoreError(
                f"{self.address(STORE_FILE)} is damaged.",
                f'If this is a store of format {FORMAT}, write {{"format": {FORMAT}}} into that file.',
            ) from error
        if version != FORMAT:
            raise StoreError(
                f"The store {self.url} has format {version}, but this version of Gristmill reads format {FORMAT}.",
                "Use the version that wrote it, or another store (--store, or runtime.store in a profile).",
            )

    def _check_empty(self) -> None:
        # Hidden files may belong to another process that is creating the same store
        content = [path.name for path in self.local.iterdir() if not path.name.startswith(".")]
        if not content or self.fs.exists(f"{self.root}/{STORE_FILE}"):
            return
        if "artifacts" in content:
            raise StoreError(
                f"{self.address(STORE_FILE)} is missing.",
                f'If this is a store, write {{"format": {FORMAT}}} into that file.',
            )
        raise StoreError(f"{self.url} is not empty and not a store.", "Set runtime.store to another folder.")

    def address(self, name: str) -> str:
        """The address of `name` for a person: a path, or a bucket's URL."""
        return f"{self.root if self.is_folder else self.url.rstrip('/')}/{name}"

    def check_exists(self) -> None:
        """Raises StoreError if nothing was ever written here: a mistyped address looks like an empty store."""
        if not self.fs.exists(f"{self.root}/{STORE_FILE}"):
            raise StoreError(
                f"No store exists at {self.url}.", "Check --store. `gristmill run PROFILE` creates a store."
            )

    def begin(self) -> None:
        """Create the store before the first write, so that opening one leaves nothing on disk."""
        if not self.fs.exists(f"{self.root}/{STORE_FILE}"):
            if self._has_folders:
                try:
                    self.fs.makedirs(self.root, exist_ok=True)
                except OSError as error:
                    if error.errno not in (*NO_PATH, errno.ENOENT):  # DiskFaults handles the rest
                        raise
                    raise StoreError(
                        f"No store can be created at {self.url}: {error.strerror}.",
                        "Set runtime.store (--store) to a folder on a disk where this user may write.",
                    ) from error
            self._write(STORE_FILE, json.dumps({"format": FORMAT}))

    @functools.cached_property
    def shared(self) -> SharedLocks | None:
        """The locks that other machines see, or None if only this machine's locks exist: in a folder, whose file system
        has its own, and in a service without conditional writes, or with ones that we don't use."""
        if self.is_folder:
            return None
        self.begin()
        if self._conditional and self._conditional.are_honoured(f"{self.root}/{STORE_FILE}"):
            return self.lock_objects
        logging.getLogger(__name__).warning(
            "The service of the store %s has no conditional writes%s: don't use the store on other machines meanwhile.",
            self.url,
            "" if self._conditional else " that Gristmill uses",
        )
        return None

    # --- small files (refs, the marker) -------------------------------------------------------------------------

    def write_text(self, name: str, text: str) -> None:
        """Write a small file atomically: readers see the old text or the new one, never a part."""
        self.begin()
        self._write(name, text)

    def read_tagged(self, name: str) -> tuple[bytes | None, str]:
        """Like `read_bytes`, with the tag that lets `replace` detect other writers."""
        if self.shared is None or self._conditional is None:
            return self.read_bytes(name), ""
        item = self._conditional.read(f"{self.root}/{name}")
        return (item.data, item.tag) if item else (None, "")

    def replace(self, name: str, text: str, tag: str) -> bool:
        """Write a small file whose tag came from `read_tagged`. Writes nothing and returns False if another machine
        wrote it since. Processes of this machine must hold a lock."""
        if self.shared is None or self._conditional is None:
            self.write_text(name, text)
            return True
        path, data = f"{self.root}/{name}", text.encode()
        return bool(self._conditional.swap(path, data, tag) if tag else self._conditional.create(path, data))

    def _write(self, name: str, text: str) -> None:
        if not self.is_folder:
            try:
                if self._conditional:
                    self._conditional.write(f"{self.root}/{name}", text.encode())
                else:
                    self.fs.pipe_file(f"{self.root}/{name}", text.encode())
            except FileNotFoundError as error:
                raise StoreError(
                    f"The bucket of {self.url} does not exist.", "Create it, or correct the address."
                ) from error
            return
        path = self.local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            draft.write_text(text)
            flush(draft)
            draft.rename(path)
        except OSError:  # on a full disk the rest of the draft would take the remaining space
            draft.unlink(missing_ok=True)
            raise
        flush(path.parent)

    def read_bytes(self, name: str) -> bytes | None:
        """The bytes of a small file, or None if it does not exist. Raises DamagedArtifact if it is a folder."""
        if self.is_folder and os.path.lexists(path := self.local / name) and not path.is_file():
            raise DamagedArtifact(f"{self.address(name)} is not a file.", "Remove it: a file belongs there.")
        try:
            once = {"max_concurrency": 1} if self._is_s3 else {}  # otherwise s3fs requests the size first
            return bytes(self.fs.cat_file(f"{self.root}/{name}", **once))
        except FileNotFoundError:
            return None
        except IsADirectoryError as error:
            raise DamagedArtifact(f"{self.address(name)} is a folder.", "Remove it: a file belongs there.") from error
        except NotADirectoryError as error:
            if name == STORE_FILE:  # the path is not a store
                raise
            where = self.address(name.rpartition("/")[0])
            raise DamagedArtifact(
                f"{where} or a folder above it is a file.", "Remove it: a folder belongs there."
            ) from error

    def traffic(self) -> Traffic:
        """The traffic with the bucket since the last call."""
        return self._transfers.traffic.taken()

    # --- a bucket's checkpoints of unfinished trainings -----------------------------------------------------------

    def send(self, name: str, folder: Path, files: Mapping[str, FileEntry]) -> None:
        """Send a folder's files into a folder of the bucket, and check that they arrived. Raises StoreError."""
        self._transfers.upload(folder, files, f"{self.root}/{name}")

    def receive(self, name: str, target: Path, entry: FileEntry) -> bool:
        """Fetch a file. Returns False if it has other bytes than `entry`. Raises FileNotFoundError, StoreError."""
        target.parent.mkdir(parents=True, exist_ok=True)
        return self._transfers.fetch(f"{self.root}/{name}", target, entry)

    def sizes(self, name: str) -> dict[str, int]:
        """Bytes of every file in a folder of the bucket, by its name in the folder."""
        self.fs.invalidate_cache()
        files: dict[str, Any] = {}
        with suppress(FileNotFoundError):  # no folder, or no bucket, which the first write reports
            files = self.fs.find(f"{self.root}/{name}", detail=True)
        return {str(path).removeprefix(f"{self.root}/{name}/"): int(entry["size"]) for path, entry in files.items()}

    def discard(self, name: str, first: str = "") -> None:
        """Delete a file or folder of the bucket, beginning with a folder's `first` file."""
        self.fs.invalidate_cache()
        for path in [f"{name}/{first}"] * bool(first) + [name]:
            with suppress(FileNotFoundError):
                self.fs.rm(f"{self.root}/{path}", recursive=True)

    # --- reading ------------------------------------------------------------------------------------------------

    def manifest(self, location: str) -> Manifest | None:
        """The manifest at `stage/key`, or None without an artifact."""
        data = self.read_bytes(f"artifacts/{location}/{MANIFEST}")
        return None if data is None else Manifest.from_json(data, location)

    def locations(self, stage: str = "") -> Iterator[str]:
        """`stage/key` of every published artifact, sorted."""
        if not self._has_folders:
            yield from (location for location, names in self.listed(stage).items() if MANIFEST in names)
            return
        stages = [stage] if stage else self.names("artifacts")
        for name in stages:
            for key in self.names(f"artifacts/{name}"):
                if self._is_published(f"{name}/{key}"):
                    yield f"{name}/{key}"

    def fragments(self) -> Iterator[str]:
        """`stage/key` of every folder without a manifest, sorted: a killed upload or removal. To the store it does not
        exist."""
        if not self._has_folders:
            yield from (location for location, names in self.listed().items() if MANIFEST not in names)
            return
        for stage in self.names("artifacts"):
            for key in self.names(f"artifacts/{stage}"):
                path = f"{self.root}/artifacts/{stage}/{key}"
                if not key.startswith(".") and self.fs.isdir(path) and not self.fs.exists(f"{path}/{MANIFEST}"):
                    yield f"{stage}/{key}"

    def listed(self, stage: str = "") -> dict[str, dict[str, int]]:
        """The content of a bucket: the bytes of every file, by `stage/key` and name below it. One request lists a
        thousand files, while asking for manifests takes several requests for each artifact."""
        above = f"{stage}/" if stage else ""
        files: dict[str, dict[str, int]] = {}
        for path, size in sorted(self.sizes(f"artifacts/{stage}".rstrip("/")).items()):
            name, key, file = [*f"{above}{path}".split("/", 2), "", ""][:3]
            if file:
                files.setdefault(f"{name}/{key}", {})[file] = size
        return dict(sorted(files.items()))

    def manifests(self, stage: str = "") -> Iterator[tuple[str, Manifest]]:
        """`stage/key` and manifest of every published artifact with a readable manifest."""
        for location in self.locations(stage):
            with suppress(DamagedArtifact):
                manifest = self.manifest(location)
                if manifest is not None:
                    yield location, manifest

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted, or empty for a missing folder."""
        path = f"{self.root}/{folder}"
        self.fs.invalidate_cache()
        if self._has_folders and not self.fs.isdir(path):
            return []
        try:
            entries = self.fs.ls(path, detail=False)
        except FileNotFoundError:  # a bucket has no folders
            return []
        return sorted(str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in entries)

    def find(self, stage: str, key: str, heard: Heard = lambda done, total: None) -> Artifact | None:
        """The newest artifact of a key, as by `get`, or None on a miss. Skips a folder that is another's artifact, such
        as a copied one, if there is an earlier generation. Raises DamagedArtifact."""
        made = self._generations(stage, key)
        if not made:
            return None
        newest = f"{stage}/{made[-1]}"
        try:
            return self.get(newest, heard)
        except DamagedArtifact:
            if (earlier := self.twin(newest)) == newest:
                raise
            return self.get(earlier, heard)

    def twin(self, location: str) -> str:
        """The present location of an artifact: the newest generation with its bytes, which replaced a damaged one."""
        stage, _, name = location.partition("/")
        mine = self._own_manifest(location)
        for newer in reversed(self._generations(stage, name.partition(".")[0])):
            other = self._own_manifest(f"{stage}/{newer}")
            if other and (mine is None or mine.digest == other.digest):
                return f"{stage}/{newer}"
        return location

    def _own_manifest(self, location: str) -> Manifest | None:
        """The manifest of this artifact, or None if it can't be read or is another's, as when two folders were
        swapped."""
        with suppress(DamagedArtifact):
            manifest = self.manifest(location)
            if manifest and not any(contradictions(manifest, location)):
                return manifest
        return None

    def _generations(self, stage: str, key: str) -> list[str]:
        """The generations of a key, oldest first. Listings may lag, so this also asks for the first and the next
        one."""
        listed = {name for name in self.names(f"artifacts/{stage}") if name.split(".")[0] == key}
        names = sorted({key, *listed}, key=lambda name: int(name.partition(".")[2] or 1))
        names = [name for name in names if self._is_published(f"{stage}/{name}")]
        while names and self._is_published(f"{stage}/{(newer := _next(names[-1]))}"):
            names.append(newer)
        return names

    def _is_published(self, location: str) -> bool:
        return bool(self.fs.exists(f"{self.root}/artifacts/{location}/{MANIFEST}"))

    def get(self, location: str, heard: Heard = lambda done, total: None, *, hashed: bool = True) -> Artifact:
        """The artifact at `stage/key`. In a folder every file has its published bytes. In a bucket every file has them
        once the artifact gives it out, which fetches it. `heard` receives the progress of hashing, in bytes. Without
        `hashed`, only sizes of a folder's files are checked, for a caller that checks each file when it reads it.
        Raises StoreError and DamagedArtifact."""
        manifest = self.manifest(location)
        if manifest is None:
            raise no_artifact(location, self.url)
        path = self.local / "artifacts" / location
        if self.is_folder:
            copy, problems = None, self._damage(manifest, location, heard, hashed)
        else:
            copy = Copy(self._copies, manifest, location, heard, anew=self.paranoid)
            paranoid = hashed and self.paranoid
            problems = self.damage(manifest, location) if paranoid else [*contradictions(manifest, location)]
        if problems:
            text = "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
            raise DamagedArtifact(f"{text}.", make_again(manifest.stage))
        return Artifact(folder=path, digest=manifest.digest, manifest=manifest, location=location, fetch=copy)

    def _damage(self, manifest: Manifest, location: str, heard: Heard, hashed: bool) -> list[str]:
        folder = self.local / "artifacts" / location
        done = 0

        def on_hashed(size: int) -> None:
            nonlocal done
            done += size
            heard(done, manifest.size)

        def digests(names: Iterable[str]) -> dict[str, str]:
            by_path = remembered_digests((folder / name for name in names), anew=self.paranoid, hashed=on_hashed)
            return {path.relative_to(folder).as_posix(): digest for path, digest in by_path.items()}

        sizes, closed = local_sizes(folder)
        return list(find_damage(manifest, location, sizes, digests if hashed else None, closed))

    def damage(self, manifest: Manifest, location: str) -> list[str]:
        """A phrase for each difference from what was published, after hashing every file again: in a bucket its own
        files, not the copies on this machine."""
        return list(self._damage_here(manifest, location) if self.is_folder else self._damage_there(manifest, location))

    def _damage_here(self, manifest: Manifest, location: str) -> Iterator[str]:
        folder = self.local / "artifacts" / location

        def digests(names: Iterable[str]) -> dict[str, str]:
            by_name = {}
            for name in names:
                with suppress(OSError):
                    by_name[name] = file_digest(folder / name)
            return by_name

        sizes, closed = local_sizes(folder)
        yield from (f"{location}/{name} is closed to this user" for name in closed)
        yield from find_damage(manifest, location, sizes, digests, closed)

    def _damage_there(self, manifest: Manifest, location: str) -> Iterator[str]:
        root = f"{self.root}/artifacts/{location}"

        def digest(name: str) -> str:
            with reaching(self.url):
                return self._transfers.digest(f"{root}/{name}")

        self.fs.invalidate_cache()
        files = self.fs.find(root, detail=True)
        sizes = {name.rpartition(f"artifacts/{location}/")[2]: entry["size"] for name, entry in files.items()}
        yield from find_damage(manifest, location, sizes, lambda names: {name: digest(name) for name in names})

    @staticmethod
    def _files(manifest: Manifest) -> dict[str, FileEntry]:
        """All files of an artifact except the manifest."""
        listed = FileEntry(sha256=manifest.digest, size=len(sums(manifest.files).encode()))
        return {**manifest.files, SUMS: listed}

    # --- writing ------------------------------------------------------------------------------------------------

    @contextmanager
    def lock(self, stage: str, key: str, waiting: Callable[[str], None] = lambda holder: None) -> Iterator[None]:
        """The lock of a key: one process makes the artifact, and the others wait for it, on all machines."""
        self.begin()
        name = f"{stage}-{key}"
        with locks.hold(self.local / "locks" / name, waiting):
            if self.shared is None:
                yield
                return
            with self.shared.hold(f"locks/{name}", waiting) as self._held[name]:
                try:
                    yield
                finally:
                    del self._held[name]

    def workspace(self, stage: str, key: str) -> Path:
        """The working folder of a key, kept until the artifact is published."""
        self.begin()
        path = self.local / "work" / f"{stage}-{key}"
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)  # it holds texts that will be removed or changed
        return path

    def retire(self, workspace: Path) -> Path:
        """Take a working folder out of use, so that its key may get another at once. Returns its new place, to be
        removed: that may take seconds, and a later `clear_workspaces` does it if the process ends before."""
        return workspace.rename(workspace.with_name(f"{RETIRED}{uuid4().hex}"))

    def unfinished(self, stage: str, but: str) -> list[Path]:
        """The scratch folders of a stage's keys, other than `but`, that were begun and aren't published."""
        folders = sorted((self.local / "work").glob(f"{stage}-*"))
        return [folder / "scratch" for folder in folders if folder.name != f"{stage}-{but}"]

    @contextmanager
    def branches(self, stage: str, name: str) -> Iterator[Path]:
        """The folder of states from which artifacts of a stage may begin, by a digest of what they have in common. No
        collection removes it within the block."""
        path = self.local / "branches" / stage / name
        with locks.hold(self.local / "locks" / f"{stage}-{name}", shared=True):
            path.mkdir(parents=True, exist_ok=True)
            yield path

    def clear_workspaces(self) -> None:
        """Remove the working folders of published artifacts, which remain if a process ends right after publishing. One
        in use stays, and so do all in a read-only store."""
        for path in list((self.local / "work").glob("*")):
            if path.name.startswith(RETIRED):
                shutil.rmtree(path, ignore_errors=True)
                continue
            stage, _, key = path.name.rpartition("-")
            if self._is_published(f"{stage}/{key}"):
                with suppress(OSError), locks.hold_if_free(self.local / "locks" / path.name) as mine:
                    if mine:
                        shutil.rmtree(path)

    def aside(self, stage: str, key: str) -> Path:
        """The folder for a stage's observations of its run, beside the artifact. Its first writer creates it."""
        return self.local / "insight" / stage / key

    def publish(self, folder: Path, manifest: Manifest) -> Artifact:
        """Make `folder` the artifact of `manifest.key`: flush, write the manifest last, rename (or upload).

        If the key already has an intact artifact with the same digest, made of the same artifacts, keep that one.
        Otherwise the new one becomes the next generation of the key.
        """
        location = f"{manifest.stage}/{manifest.key}"
        made = self._generations(manifest.stage, manifest.key)
        if made:
            with suppress(DamagedArtifact):
                newest = self.get(f"{manifest.stage}/{made[-1]}")
                # An intact copy on this machine says nothing about the bucket
                intact = self.is_folder or not (newest.manifest and self.damage(newest.manifest, newest.location))
                if newest.manifest and _made_alike(newest.manifest, manifest) and intact:
                    return newest
            location = f"{manifest.stage}/{_next(made[-1])}"
        (folder / SUMS).write_text(sums(manifest.files))
        open_up(folder, (folder / SUMS).stat().st_mode)
        flush_tree(folder)
        (folder / MANIFEST).write_text(manifest.to_json())
        flush(folder / MANIFEST)
        flush(folder)
        target = self.local / "artifacts" / location
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise StoreError(f"{target.parent} is a file.", "Remove it: a folder belongs there.") from error
        if not self.is_folder:
            self._copies.use(location)
        if target.is_symlink() or target.is_file():
            target.unlink()
        shutil.rmtree(target, ignore_errors=True)  # without a manifest it never existed
        folder.rename(target)
        flush(target.parent)
        remember({target / name: entry.sha256 for name, entry in manifest.files.items()})
        if not self.is_folder and not self._upload(target, manifest, location):
            target.rename(folder)
            return self.publish(folder, manifest)  # as the next generation, if the other one has other bytes
        return self.get(location)

    def _upload(self, folder: Path, manifest: Manifest, location: str) -> bool:
        """Upload files, the manifest last, after deleting the rest of a killed upload or removal. Returns False if
        another machine, which considered the lock abandoned, wrote its manifest first."""
        remote, files = f"{self.root}/artifacts/{location}", self._files(manifest)
        lock = self._held.get(f"{manifest.stage}-{manifest.key}")
        self.fs.invalidate_cache()
        for path in self.fs.find(remote):
            if str(path).removeprefix(f"{remote}/") not in files:
                self.fs.rm_file(path)
        self._transfers.upload(folder, files, remote, lock.check if lock else lambda: None)
        return self.replace(f"artifacts/{location}/{MANIFEST}", (folder / MANIFEST).read_text(), "")

    def remove(self, location: str) -> None:
        """Delete an artifact or a fragment, the manifest first, so that it never exists in part."""
        remote = f"{self.root}/artifacts/{location}"
        self.fs.invalidate_cache()
        for path in [f"{remote}/{MANIFEST}", remote]:
            with suppress(FileNotFoundError):  # another collection was faster
                self.fs.rm(path, recursive=path == remote or (self.is_folder and Path(path).is_dir()))
        if not self.is_folder:
            shutil.rmtree(self.local / "artifacts" / location, ignore_errors=True)


def _made_alike(one: Manifest, other: Manifest) -> bool:
    """Whether two artifacts have the same bytes, and need the same others."""
    return (one.digest, one.origins, one.uses) == (other.digest, other.origins, other.uses)


def _next(name: str) -> str:
    """The next generation of a key."""
    key, _, number = name.partition(".")
    return f"{key}.{int(number or 1) + 1}"
