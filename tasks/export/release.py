"""Finds a release in a store, and opens it in its best format for this machine's CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from storage import refs
from storage.artifact import Artifact
from storage.errors import StoreError
from storage.store import Store
from tasks.export.formats import FORMATS

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime


RELEASED = "released"  # the refs of promoted releases begin with it, and their alias in a registry has its name


def profile_of(store: Store, ref: str) -> str:
    """The profile of a release: `tiny` of tiny/export@2 and of released/tiny, or the one that made export/KEY. Raises
    StoreError."""
    first, _, last = ref.partition("@")[0].partition("/")
    if first != "export":
        return last if first == RELEASED else first
    location = refs.resolve(store, ref)
    for name in refs.names(store):
        profile, _, stage = name.partition("/")
        if stage == "export" and any(entry.location == location for entry in refs.history(store, name)):
            return profile
    raise StoreError(f"{ref} is of no profile: no ref names it.", "Name a release by its ref, such as tiny/export.")


def find_release(store: Store, ref: str) -> Artifact:
    """The release that a ref names, with every byte checked. Raises StoreError for another kind of artifact, and
    DamagedArtifact."""
    releases = [name for name in refs.names(store) if name.endswith("/export")]
    if ref.partition("@")[0].endswith("/export") and ref.partition("@")[0] not in releases:
        named = f"Name another: {', '.join(releases)}. Or make it" if releases else "Make it"
        profile = ref.removesuffix("/export")
        raise StoreError(f"The store {store.url} has no release {ref}.", f"{named}: `gristmill run {profile}`")
    location = refs.resolve(store, ref)
    if not location.startswith("export/"):
        advice = f"Name a release: {', '.join(releases)}" if releases else "Make one with `gristmill run PROFILE`"
        raise StoreError(f"{ref} isn't a release but an artifact of {location.partition('/')[0]}.", f"{advice}.")
    return store.get(location)


def release_name(text: str) -> str:
    """The ref of a release: `tiny` and `tiny@2` mean those of tiny/export."""
    profile, at, number = text.partition("@")
    return text if "/" in profile else f"{profile}/export{at}{number}"


def best_format(folder: Path, format: str | None = None) -> str:
    """`format`, or else the one with the lowest `chat_rank` that a release holds. Raises StoreError for a folder
    without that format or any."""
    names = [name for name, known in FORMATS.items() if known.files(folder)]
    held = [name for name in names if format in (None, name)]
    if names and not held:
        raise StoreError(f"The release doesn't hold {format}.", f"It holds {', '.join(names)}.")
    if not held:
        raise StoreError(
            f"{folder} doesn't hold a model in any of {', '.join(FORMATS)}.", "Give the folder of an export."
        )
    return min(held, key=lambda name: FORMATS[name].chat_rank)


def open_release(folder: Path, *, threads: int = 1, format: str | None = None) -> ModelRuntime:
    """Open the release in its runtime, in the format of `best_format`. Raises StoreError, also if the runtime can't
    load it."""
    from models.runtimes.protocol import RuntimeFault

    try:
        return FORMATS[best_format(folder, format)].open(folder, threads)
    except RuntimeFault as error:
        raise StoreError(f"{error}.", "Check it with `gristmill store verify`, or export it again.") from error
