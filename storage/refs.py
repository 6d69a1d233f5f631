"""Refs: human-readable names for artifacts, with their history.

`tiny/pretrain` is the latest artifact of the stage `pretrain` under the profile `tiny`, `tiny/pretrain@1` the first. A
ref only moves forward and keeps its history, so that last week's model can still be found. If two machines move one at
once, each appends to what the other has written (compare and swap).
"""

from __future__ import annotations

import difflib
import json
import os
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from storage.errors import DamagedArtifact, StoreError
from storage.files import locks
from storage.files.disk import cant_write
from storage.manifest import check_name, check_text
from storage.store import Store

GC_LATER = "Run `gristmill store gc` only afterwards: it removes what no ref names."


class RefEntry(BaseModel):
    """One step of a ref's history."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    location: Annotated[str, AfterValidator(check_name)]
    digest: str
    time: str


BACK_OFF_SECONDS = 0.5
SHOWN = 12  # refs in an error
_HISTORY = TypeAdapter(Annotated[list[RefEntry], Field(min_length=1)])


def history(store: Store, name: str) -> list[RefEntry]:
    """Every artifact that `name` (such as `tiny/pretrain`) has pointed to, oldest first, or empty for an unknown name.
    Raises StoreError for an invalid name, DamagedArtifact for a ref that can't be read."""
    file = _file(name)
    try:
        check_text(file)
    except ValueError as error:
        raise StoreError(f"No artifact can have this name: {error}.", "`gristmill store ls` lists them.") from error
    return _parsed(store, name, store.read_bytes(file))


def _file(name: str) -> str:
    return f"refs/{name}.json"


def _parsed(store: Store, name: str, data: bytes | None) -> list[RefEntry]:
    try:
        return [] if data is None else _HISTORY.validate_json(data)
    except ValidationError as error:
        raise DamagedArtifact(
            f"The ref {name} is damaged: {error.errors()[0]['msg']}.",
            f"Delete {store.address(_file(name))}. The next run writes a new one, without its history. {GC_LATER}",
        ) from error


def move(store: Store, name: str, location: str, digest: str) -> int:
    """Point `name` at an artifact, unless it already does, and return its number in the history (from 1). A read-only
    store keeps its refs."""
    known = history(store, name)
    if known and (known[-1].location, known[-1].digest) == (location, digest):
        return len(known)
    try:
        return _append(store, name, location, digest)
    except OSError as error:
        if not cant_write(error):
            raise
        return len(known)


def _append(store: Store, name: str, location: str, digest: str) -> int:
    with locks.hold(store.local / "locks" / f"ref-{name.replace('/', '-')}"):
        while True:
            data, tag = store.read_tagged(_file(name))
            entries = _parsed(store, name, data)
            if entries and (entries[-1].location, entries[-1].digest) == (location, digest):
                return len(entries)
            entries.append(RefEntry(location=location, digest=digest, time=datetime.now(UTC).isoformat()))
            text = json.dumps([entry.model_dump() for entry in entries], indent=1)
            if store.replace(_file(name), text, tag):
                return len(entries)
            time.sleep(random.uniform(0, BACK_OFF_SECONDS))  # another machine moved it: read again


def resolve(store: Store, text: str) -> str:
    """The location (`stage/key`) that a user's text names: `tiny/pretrain`, `tiny/pretrain@2`, or `stage/key…`.

    A key may be abbreviated if it stays unique. Raises StoreError, listing what exists.
    """
    if not text:
        raise StoreError("The name is empty.", "Give a ref such as tiny/pretrain: `gristmill store ls` lists them.")
    name, _, number = text.partition("@")
    entries = history(store, name)
    if entries and not number:
        return entries[-1].location
    if entries:
        if not number.isdigit() or not 1 <= int(number) <= len(entries):
            raise StoreError(
                f"{name} has no version @{number}.", f"It has @1{f' to @{len(entries)}' if entries[1:] else ''}."
            )
        return entries[int(number) - 1].location
    matches = [location for location in store.locations() if location.startswith(text) and "/" in text]
    if len(matches) == 1:
        return matches[0]
    if matches:
        problem = f"{text} matches {len(matches)} artifacts."
        raise StoreError(problem, f"Give more of the key: {', '.join(matches[:3])} …")
    known = list(names(store))
    near = difflib.get_close_matches(name, known, 1)
    meant = f"Did you mean {near[0]}? " if near else ""
    rest = f" and {len(known) - SHOWN} more (`gristmill store ls`)" if known[SHOWN:] else ""
    remedy = f"{meant}Its refs: {', '.join(known[:SHOWN]) or 'none yet'}{rest}."
    raise StoreError(f"{text} is neither a ref nor an artifact of {store.url}.", remedy)


def names(store: Store) -> Iterator[str]:
    """The names of all refs, sorted, including folders with a ref's name. Raises OSError for a folder that can't be
    listed: a collection would delete the artifact of a ref that is overlooked."""
    folder = f"{store.root}/refs"
    store.fs.invalidate_cache()
    for path in sorted(_listed(folder) if store.is_folder else store.fs.find(folder)):
        relative = path.removeprefix(folder).lstrip("/")
        if relative.endswith(".json") and not relative.rsplit("/", 1)[-1].startswith("."):
            yield relative.removesuffix(".json")


def _listed(folder: str) -> Iterator[str]:
    """All files and folders below a folder, without following links, or empty if it is missing."""

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # removed meanwhile, like a profile's last ref
            raise error

    for place, folders, files in os.walk(folder, onerror=failed):
        yield from (os.path.join(place, name) for name in [*files, *folders])
