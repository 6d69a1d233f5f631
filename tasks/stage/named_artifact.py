"""Earlier artifacts that a config names, with their version: `tiny/dedup@3`, or a location.

A bare ref moves with every run: a run that named its own profile's ref would read itself.
"""

from __future__ import annotations

from storage import refs
from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.stage.session import current


def named_artifact(field: str, name: str) -> Artifact:
    """The artifact that `field` of a profile names. Raises ConfigError for a name that moves, and in a plain call."""
    session = current()
    if session is None:
        raise ConfigError(f"{field} needs a store.", "Run the stage in a flow, or leave the field empty.")
    if "/" in name and "@" not in name and (history := refs.history(session.store, name)):
        raise ConfigError(f"{field} names {name}, which moves.", f"Name a version: {name}@{len(history)}.")
    location = refs.resolve(session.store, name)
    session.use(*location.split("/"))
    return session.store.get(location)
