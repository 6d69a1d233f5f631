"""The steps by which a release gets to a place of files, so that nobody else's file is ever replaced.

    SHA256SUMS.part   put first: whose release is on its way here; files that differ are replaced only under it
    the files         and the signature; read back
    SHA256SUMS        put last, and SHA256SUMS.part goes: where the list is, all of it is

A file there with a name of ours is ours if its bytes are. Where it differs it is replaced only if the place has our
list under either name: then it is what a broken upload, or damage, left of this very release.
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
    """A folder of files, here or far away. Its methods raise StoreError."""

    @property
    def url(self) -> str:
        """What to call it."""

    def names(self) -> Mapping[str, bool]:
        """All that is there, by name, and whether it is a plain file."""

    def digest(self, name: str) -> str | None:
        """SHA-256 of a file; None where there is none."""

    def start(self, name: str, size: int) -> bytes:
        """The first bytes of a file."""

    def put(self, source: Path, name: str) -> None:
        """Copy a file to it, in place of one that it has."""

    def rename(self, old: str, new: str) -> None:
        """Move a file over another."""

    def remove(self, name: str) -> None:
        """Take a file away."""


def push_to(place: Place, outgoing: Outgoing) -> None:
    """Copy a release to a place where nothing else lies, and hash what arrived. Raises StoreError for a place with
    other files, DamagedArtifact for other bytes."""
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
    """Whether an upload of this release has begun there. Raises StoreError where anything is not of this release."""
    if odd := sorted(name for name, plain in there.items() if not plain):
        raise StoreError(f"{place.url} holds what is no plain file: {few(odd)}.", _ELSEWHERE)
    if SUMS in there and place.digest(SUMS) != outgoing.digests[SUMS]:
        raise StoreError(f"{place.url} holds another release.", "Give another place, or take that one away first.")
    begun = False
    if PART in there:
        ours = (outgoing.folder / SUMS).read_bytes()
        found = place.start(PART, len(ours) + 1)
        if not ours.startswith(found):  # shorter where the upload of the marker itself broke off
            why = "what is left of an upload of another release"
            raise StoreError(f"{place.url} holds {why}.", "Give another place, or take that away first.")
        begun = found == ours
    if strange := sorted(there.keys() - outgoing.digests.keys() - {PART}):
        raise StoreError(f"{place.url} holds other files: {few(strange)}.", _ELSEWHERE)
    if not begun and SUMS not in there:
        ours_by_name = sorted(there.keys() & outgoing.digests.keys())
        if others := [name for name in ours_by_name if place.digest(name) != outgoing.digests[name]]:
            raise StoreError(f"{place.url} holds other files: {few(others)}.", _ELSEWHERE)
    return begun


def _other_bytes(place: Place, names: list[str]) -> DamagedArtifact:
    return DamagedArtifact(f"What arrived at {place.url} is not what was sent: {few(names)}.", "Push it again.")
