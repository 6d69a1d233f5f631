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


def find_release(store: Store, ref: str) -> Artifact:
    """The release that a ref names, with every byte checked. Raises StoreError for another kind of artifact, and
    DamagedArtifact."""
    location = refs.resolve(store, ref)
    if not location.startswith("export/"):
        releases = [name for name in refs.names(store) if name.endswith("/export")]
        advice = f"Name a release: {', '.join(releases)}" if releases else "Make one with `gristmill run PROFILE`"
        raise StoreError(f"{ref} isn't a release but an artifact of {location.partition('/')[0]}.", f"{advice}.")
    return store.get(location)


def open_release(folder: Path, *, threads: int = 1, format: str | None = None) -> ModelRuntime:
    """Open the release in its runtime, in `format` or else the one with the lowest `chat_rank` that it holds.

    Raises StoreError for a folder without that format or any, and if the runtime can't load it.
    """
    from models.runtimes.protocol import RuntimeFault

    names = [name for name, known in FORMATS.items() if known.files(folder)]
    held = [FORMATS[name] for name in names if format in (None, name)]
    if names and not held:
        raise StoreError(f"The release doesn't hold {format}.", f"It holds {', '.join(names)}.")
    if not held:
        raise StoreError(
            f"{folder} doesn't hold a model in any of {', '.join(FORMATS)}.", "Give the folder of an export."
        )
    try:
        return min(held, key=lambda known: known.chat_rank).open(folder, threads)
    except RuntimeFault as error:
        raise StoreError(f"{error}.", "Check it with `gristmill store verify`, or export it again.") from error
