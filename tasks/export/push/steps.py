"""The steps of copying a release to a destination, which never replace anyone else's file.

    SHA256SUMS.part   written first: identifies the release on its way, and permits replacing files that differ
    the files         and the signature, then read back
    SHA256SUMS        written last, when SHA256SUMS.part goes: a list implies that all files are complete

An existing file with one of our names is ours if its bytes are equal. Otherwise it is replaced only if the destination
has our list under either name: then it is left from an interrupted upload, or from damage, of this very release.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from storage.errors import DamagedArtifact, StoreError
from storage.manifest import SUMS
from tasks.export.push.outgoing import Outgoing
from tasks.export.release_folder import few

PART = f"{SUMS}.part"
_ELSEWHERE = "Name another place: a folder of a bucket, or one here, that holds nothing else."


class Place(Protocol):
    """A folder of files, local or remote. Its methods raise StoreError."""

    @property
    def url(self) -> str:
        """Its name in messages."""

    def names(self) -> Mapping[str, bool]:
        """Its entries by name, each with whether it is a plain file."""

    def digest(self, name: str) -> str | None:
        """SHA-256 of a file, or None if it doesn't exist."""

    def start(self, name: str, size: int) -> bytes:
        """The first bytes of a file."""

    def put(self, source: Path, name: str) -> None:
        """Copy a file to it, replacing an existing one."""

    def rename(self, old: str, new: str) -> None:
        """Move a file over another."""

    def remove(self, name: str) -> None:
        """Remove a file."""


def push_to(place: Place, outgoing: Outgoing) -> None:
    """Copy a release to a destination without other files, and hash what arrived. Raises StoreError for a destination
    with other files, DamagedArtifact if other bytes arrived."""
    there = place.names()
    begun = _check_there(place, there, outgoing)
    if SUMS not in there and not begun:
        place.put(outgoing.folder / SUMS, PART)
    for name, digest in outgoing.digests.items():
        if name != SUMS and (name not in there or place.digest(name) != digest):
            place.put(outgoing.folder / name, name)
    wrong = [name for name, digest in outgoing.digests.items() if name != SUMS and place.digest(name) != digest]
    if wrong:
        raise _other_bytes(place, wrong)
    if SUMS not in there:
        place.rename(PART, SUMS)
    elif PART in there:
        place.remove(PART)
    if place.digest(SUMS) != outgoing.digests[SUMS]:
        raise _other_bytes(place, [SUMS])
    if differ := sorted(place.names().keys() ^ outgoing.digests.keys()):
        raise _other_bytes(place, differ)


def _check_there(place: Place, there: Mapping[str, bool], outgoing: Outgoing) -> bool:
    """Whether an upload of this release has begun there. Raises StoreError if anything there is not of this release."""
    if odd := sorted(name for name, plain in there.items() if not plain):
        raise StoreError(f"{place.url} holds entries other than plain files: {few(odd)}.", _ELSEWHERE)
    if SUMS in there and place.digest(SUMS) != outgoing.digests[SUMS]:
        raise StoreError(f"{place.url} holds another release.", "Name another place, or remove that release first.")
    begun = False
    if PART in there:
        ours = (outgoing.folder / SUMS).read_bytes()
        marker = place.start(PART, len(ours) + 1)
        if not ours.startswith(marker):  # a prefix if the upload of the marker itself was interrupted
            raise StoreError(
                f"{place.url} holds the rest of another release's upload.",
                "Name another place, or remove those files first.",
            )
        begun = marker == ours
    if strange := sorted(there.keys() - outgoing.digests.keys() - {PART}):
        raise StoreError(f"{place.url} holds other files: {few(strange)}.", _ELSEWHERE)
    if not begun and SUMS not in there:
        ours_by_name = sorted(there.keys() & outgoing.digests.keys())
        if others := [name for name in ours_by_name if place.digest(name) != outgoing.digests[name]]:
            raise StoreError(f"{place.url} holds other files: {few(others)}.", _ELSEWHERE)
    return begun


def _other_bytes(place: Place, names: list[str]) -> DamagedArtifact:
    return DamagedArtifact(f"{place.url} received other bytes than were sent: {few(names)}.", "Push it again.")
