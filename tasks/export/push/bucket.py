"""A release goes to a folder or a bucket, whatever fsspec knows, and is read back."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from storage.digests import CHUNK
from storage.errors import DamagedArtifact, StoreError
from storage.files.remote import Remote, opened, reaching
from storage.store import STORE_FILE
from tasks.export.push.outgoing import Outgoing

_ELSEWHERE = "Name a folder of a bucket, or one here, that holds nothing else."


def push_to_files(outgoing: Outgoing, url: str) -> None:
    """Copy a release to where nothing else lies, the list of its files last, and hash what arrived.

    What an earlier push left there is written again where it differs. Raises ConfigError for an address with a
    password, StoreError for one that has other files or can't be reached, DamagedArtifact for other bytes.
    """
    instead = "Give a folder, the URL of a file system that fsspec knows, or hf://OWNER/NAME."
    fs, root = opened(url, "The address", instead)
    if isinstance(fs, LocalFileSystem):
        _check_folder(Path(root), outgoing.folder)
    remote: Any = fs if isinstance(fs, LocalFileSystem) else Remote(fs, url)
    there = _listed(remote, root, url)
    if strange := sorted(there - outgoing.digests.keys()):
        named = ", ".join(strange[:3]) + (f" and {len(strange) - 3} more" if len(strange) > 3 else "")
        raise StoreError(f"{url} holds other files: {named}.", _ELSEWHERE)
    for name, digest in outgoing.digests.items():
        place = f"{root}/{name}"
        if name in there and _digest(remote, place, url) == digest:
            continue
        if isinstance(fs, LocalFileSystem):
            remote.makedirs(place.rpartition("/")[0], exist_ok=True)
        remote.put_file(str(outgoing.folder / name), place)
    wrong = [name for name, digest in outgoing.digests.items() if _digest(remote, f"{root}/{name}", url) != digest]
    if wrong or _listed(remote, root, url) != outgoing.digests.keys():
        raise DamagedArtifact(f"What arrived at {url} is not what was sent: {', '.join(wrong)}.", "Push it again.")


def _check_folder(target: Path, release: Path) -> None:
    if any((parent / STORE_FILE).is_file() for parent in (target, *target.parents)):
        raise StoreError(f"{target} lies in a store, which has its own files only.", "Name a folder outside of it.")
    if target.resolve().is_relative_to(release.resolve()):
        raise StoreError(f"{target} lies in the release itself.", "Name a folder outside of it.")
    if target.is_file():
        raise StoreError(f"{target} is a file.", _ELSEWHERE)


def _listed(fs: Any, root: str, url: str) -> set[str]:
    fs.invalidate_cache()
    try:
        return {str(path).removeprefix(root).lstrip("/") for path in fs.find(root)}
    except FileNotFoundError as error:  # a folder of a bucket need not be there, the bucket must
        raise StoreError(f"There is no bucket for {url}.", "Create it, or correct the address.") from error


def _digest(fs: Any, place: str, url: str) -> str | None:
    """SHA-256 of what lies there; None where nothing does."""
    digest = hashlib.sha256()
    try:
        with reaching(url), fs.open(place, "rb") as file:
            while block := file.read(CHUNK):
                digest.update(block)
    except FileNotFoundError:
        return None
    return digest.hexdigest()
