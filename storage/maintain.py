"""Maintaining a store: garbage collection, and adopting artifacts made elsewhere."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from storage import leases, refs
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import DamagedArtifact, EmptyOutput, StoreError
from storage.files import locks
from storage.files.unfinished import Upload
from storage.keys import KeyPayload
from storage.manifest import MANIFEST, SUMS, InputRef, Manifest
from storage.runs import history
from storage.store import CHECKPOINTS, Store

DAY = 86_400.0
BATCH_SECONDS = 2.0  # of deletions, while runs wait for a lease
REAL_FILES = "Put the file itself there (`cp -rL` follows links)."


@dataclass(frozen=True)
class Garbage:
    """What a collection would delete, with sizes in bytes.

    Artifacts, and fragments of them that a kill left; unused folders (abandoned work, branches of trainings, insight
    into runs whose artifact is gone); drafts of refs and records; records of the oldest runs. In a bucket also
    checkpoints of trainings that ended or were abandoned, and uploads that a kill left unfinished. If needed artifacts
    are `unreadable`, nothing that could be their ancestor is deleted.
    """

    artifacts: dict[str, int]
    workspaces: dict[Path, int]
    drafts: dict[Path, int]
    checkpoints: dict[str, int]
    uploads: list[Upload]
    records: dict[str, int]
    unreadable: list[str]
    keep_last: int

    @property
    def size(self) -> int:
        """Total bytes."""
        kinds = (self.artifacts, self.workspaces, self.drafts, self.checkpoints, self.records)
        return sum(sum(sizes.values()) for sizes in kinds) + sum(upload.size for upload in self.uploads)


def find_garbage(store: Store, keep_last: int, settled: float = DAY) -> Garbage:
    """Everything that the last `keep_last` versions of all refs don't need, directly or as an ancestor, and that no
    running stage uses. Another machine may be working without a visible lock, so files without a manifest in a bucket,
    and drafts of refs, count only once they are `settled` seconds old."""
    used = leases.leased_keys(store)  # before reading refs: a run moves its refs, then drops its leases
    needed, unreadable = _needed(store, keep_last)
    sizes = _sizes(store, manifests=store.is_folder or bool(unreadable))
    published = list(store.locations())
    fragments = _fragments(store, settled, published)
    artifacts = {}
    for location in [*published, *fragments]:
        key = location.partition(".")[0]
        held = key in used or locks.is_held(store.local / "locks" / key.replace("/", "-"))
        # An unreadable ref or artifact may need any other
        if location not in needed and not held and not (unreadable and location in sizes):
            artifacts[location] = sizes.get(location, fragments.get(location, 0))
    workspaces = {
        path: _size(path)
        for path in sorted((store.local / "work").glob("*"))
        if not locks.is_held(_lock_of(store, path))
    }
    kept = {location.partition(".")[0] for location in published if location not in artifacts}
    for path in sorted((store.local / "insight").glob("*/*")):
        if f"{path.parent.name}/{path.name}" not in kept and not locks.is_held(_lock_of(store, path)):
            workspaces[path] = _size(path)
    for path in sorted((store.local / "branches").glob("*/*")):
        if not locks.is_held(_lock_of(store, path)):
            workspaces[path] = _size(path)
    old = datetime.now(UTC) - timedelta(seconds=settled)
    uploads = store.uploads.begun_before(store.root, old) if store.uploads else []
    checkpoints = _checkpoints(store, used, kept, old)
    records = _records(store)
    return Garbage(artifacts, workspaces, _drafts(store, settled), checkpoints, uploads, records, unreadable, keep_last)


def _records(store: Store) -> dict[str, int]:
    """Bytes of each run's record that is older than the newest `history.KEPT`."""
    sizes = {}
    for run in history.oldest(store):
        with suppress(FileNotFoundError):  # another collection was faster
            sizes[run] = int(store.fs.size(f"{store.root}/{history.file_of(run)}"))
    return sizes


def _sizes(store: Store, *, manifests: bool) -> dict[str, int]:
    """Bytes of every artifact with a readable manifest, or as a bucket lists them."""
    if manifests:
        return {location: manifest.size for location, manifest in store.manifests()}
    listed = store.listed().items()
    return {
        location: sum(size for name, size in files.items() if name not in (MANIFEST, SUMS))
        for location, files in listed
        if MANIFEST in files
    }


def _fragments(store: Store, settled: float, published: Sequence[str]) -> dict[str, int]:
    """Bytes of fragments of artifacts that a kill left, and of this machine's copies of what is not in the bucket,
    because its upload failed or a collection elsewhere deleted it."""
    old = datetime.now(UTC) - timedelta(seconds=settled)
    sizes, fragments = {}, list(store.fragments())
    for location in fragments:
        files = store.fs.find(f"{store.root}/artifacts/{location}", detail=True)
        if store.is_folder or all(store.fs.modified(file) <= old for file in files):
            sizes[location] = sum(int(entry["size"]) for entry in files.values())
    if not store.is_folder:
        remote = {*published, *fragments}
        for path in sorted((store.local / "artifacts").glob("*/*")):
            location = f"{path.parent.name}/{path.name}"
            if location not in remote:
                sizes[location] = _size(path)
    return sizes


def _checkpoints(store: Store, used: Collection[str], made: Collection[str], old: datetime) -> dict[str, int]:
    """Bytes of a bucket's checkpoints, by `stage/key`, that no training needs: the artifact exists, or nothing was sent
    since `old`."""
    by_key: dict[str, list[tuple[int, str]]] = {}
    for name, size in {} if store.is_folder else store.sizes(CHECKPOINTS).items():
        by_key.setdefault("/".join(name.split("/")[:2]), []).append((size, f"{store.root}/{CHECKPOINTS}/{name}"))
    return {
        key: sum(size for size, _ in files)
        for key, files in by_key.items()
        if key not in used and (key in made or all(store.fs.modified(path) <= old for _, path in files))
    }


def _drafts(store: Store, settled: float) -> dict[Path, int]:
    """Bytes of each draft of a ref, a run's record or the store's marker that was never renamed to its final name."""
    sizes = {}
    above = [*(store.local / "refs").rglob(".*.json.*"), *(store.local / "runs").glob(".*.json.*")]
    for path in [*store.local.glob(".*.json.*"), *above]:
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime >= settled:
                sizes[path] = path.stat().st_size
    return sizes


def _needed(store: Store, keep_last: int) -> tuple[set[str], list[str]]:
    """The artifacts that the last versions of all refs need, and the refs and artifacts that can't be read."""
    needed: set[str] = set()
    unreadable: list[str] = []
    for name in refs.names(store):
        try:
            entries = refs.history(store, name)[-keep_last:]
        except DamagedArtifact:
            unreadable.append(f"refs/{name}.json")
            continue
        for entry in entries:
            _mark(store, entry.location, needed, unreadable)
    return needed, unreadable


def collect(store: Store, garbage: Garbage) -> Garbage:
    """Delete what `find_garbage` found, if it is still garbage: a run may have started or ended since. Returns what was
    deleted."""
    artifacts: dict[str, int] = {}
    workspaces: dict[Path, int] = {}
    waiting = list(garbage.artifacts)
    while waiting:
        # Runs that have ended have moved their refs, running ones hold leases, and no lease is added in this block.
        # A batch is short, as runs wait for the same lock
        with leases.deletion(store) as (leased, check):
            needed, unreadable = _needed(store, garbage.keep_last)
            if set(unreadable) - set(garbage.unreadable):
                nothing: dict[str, Any] = {
                    "workspaces": {},
                    "drafts": {},
                    "checkpoints": {},
                    "uploads": [],
                    "records": {},
                }
                return replace(garbage, artifacts=artifacts, **nothing)
            began = time.monotonic()
            while waiting and time.monotonic() - began < BATCH_SECONDS:
                location = waiting.pop(0)
                if location not in needed and location.partition(".")[0] not in leased:
                    check()
                    store.remove(location)
                    artifacts[location] = garbage.artifacts[location]
    for path, size in garbage.workspaces.items():
        with locks.hold_if_free(_lock_of(store, path)) as free:
            if free and not (path.parent.parent.name == "insight" and _is_made(store, path)):
                shutil.rmtree(path, ignore_errors=True)
                workspaces[path] = size
    for path in garbage.drafts:
        path.unlink(missing_ok=True)
    checkpoints = {}
    for key, size in garbage.checkpoints.items():
        with leases.deletion(store) as (leased, check):
            if key not in leased:
                check()
                store.discard(f"{CHECKPOINTS}/{key}")
                checkpoints[key] = size
    for upload in garbage.uploads:
        if store.uploads:
            store.uploads.abort(upload)
    for run in garbage.records:
        history.remove(store, run)
    return replace(garbage, artifacts=artifacts, workspaces=workspaces, checkpoints=checkpoints)


def _lock_of(store: Store, folder: Path) -> Path:
    """The lock of a folder of `work/`, `insight/` or `branches/`."""
    parts = folder.relative_to(store.local).parts[1:]
    return store.local / "locks" / "-".join(parts)


def _is_made(store: Store, insight: Path) -> bool:
    stage, key = insight.parts[-2:]
    return any(location.partition(".")[0] == f"{stage}/{key}" for location in store.locations(stage))


def adoptable(store: Store, folder: Path) -> Artifact:
    """A folder made elsewhere, for a stage to check before `adopt`. It is not hashed, so its digest is empty. Raises
    StoreError if it is not a folder, lies in the store or contains it (a copy would contain itself), or holds links,
    which may lead anywhere, pipes or devices."""
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder.", "Give the folder that contains the artifact's files.")
    resolved, root = folder.resolve(), store.local.resolve()
    if resolved == root or resolved in root.parents or root in resolved.parents:
        where = "contains" if resolved in root.parents else "is in" if resolved != root else "is"
        raise StoreError(f"{folder} {where} the store {store.local}.", "Copy the files to a separate folder first.")
    for place, folders, names in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *names)):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise StoreError(f"{path} is a {'link' if path.is_symlink() else 'pipe or a device'}.", REAL_FILES)
    return Artifact(folder=folder, digest="")


def adopt(store: Store, folder: Path, payload: KeyPayload, origins: Mapping[str, InputRef], note: str) -> Artifact:
    """Publish a copy of a folder made elsewhere as the artifact of `payload`'s key. `note` names its origin.

    The stage must check that the files can replace its own. Raises StoreError like `adoptable`.
    """
    adoptable(store, folder)
    with store.lock(payload.stage, payload.key()):
        draft = store.workspace(payload.stage, payload.key()) / "adopted"
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(folder, draft, ignore=shutil.ignore_patterns("manifest.json", "SHA256SUMS"))
        files = list_files(draft)
        if not files:
            raise EmptyOutput(f"{folder} has no files.", "Give the folder that contains the artifact's files.")
        manifest = Manifest(
            key=payload.key(),
            payload=payload,
            digest=tree_digest(files),
            files=files,
            origins=dict(origins),
            facts={"seconds": 0.0, "adopted": note},
            created=datetime.now(UTC).isoformat(timespec="microseconds"),
        )
        artifact = store.publish(draft, manifest)
        shutil.rmtree(store.workspace(payload.stage, payload.key()), ignore_errors=True)
        return artifact


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def lineage_of(store: Store, location: str) -> set[str]:
    """An artifact and all its ancestors, as far as manifests can be read."""
    locations: set[str] = set()
    _mark(store, location, locations, [])
    return locations


def _mark(store: Store, location: str, needed: set[str], unreadable: list[str]) -> None:
    location = store.twin(location)
    if location in needed:
        return
    needed.add(location)
    try:
        manifest = store.manifest(location)
    except DamagedArtifact:
        unreadable.append(location)
        return
    if manifest:
        for origin in [*manifest.origins.values(), *manifest.uses.values()]:
            _mark(store, origin.location, needed, unreadable)
