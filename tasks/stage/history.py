"""What a stage made before: why an artifact must be made, and what of an earlier one can be taken over."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from storage.artifact import Artifact
from storage.errors import StoreError
from storage.keys import KeyPayload, differences
from storage.manifest import Manifest
from storage.store import Store

NEVER_MADE = "never made before"


def explain_miss(store: Store, payload: KeyPayload, refresh: bool = False) -> str:
    """Why an artifact must be made: the fields that differ from the nearest earlier artifact of the stage."""
    if refresh:
        return "refresh was asked for"
    found = nearest(store, payload)
    if found is None:
        return NEVER_MADE
    changed = differences(found.payload.model_dump(), payload.model_dump())
    if not changed:
        return "its artifact is gone"
    shown = [f"{path.removeprefix('config.')}: {_short(old)} → {_short(new)}" for path, old, new in changed]
    return "; ".join(shown[:6]) + (f"; and {len(shown) - 6} more" if len(shown) > 6 else "")


def nearest(store: Store, payload: KeyPayload, *, but: str = "") -> Manifest | None:
    """The stage's artifact whose payload differs in the fewest fields, the newest of equals; not `but`."""
    known = sorted((manifest for _, manifest in store.manifests(payload.stage)), key=lambda m: m.created, reverse=True)
    target = payload.model_dump()
    known = [manifest for manifest in known if manifest.key != but]
    return min(known, key=lambda m: len(differences(m.payload.model_dump(), target)), default=None)


def find_earlier(store: Store, payload: KeyPayload, source: str, same: Sequence[str]) -> Artifact | None:
    """The newest artifact of the stage with this version, config, source code and the `same` inputs that can be
    trusted: its manifest agrees with itself and its files are there. In a bucket store it is fetched."""

    def identity(of: KeyPayload) -> tuple[Any, ...]:
        return of.version, of.config, {name: of.inputs.get(name) for name in same}

    alike = [
        (manifest.created, location)
        for location, manifest in store.manifests(payload.stage)
        if manifest.source_digest == source and identity(manifest.payload) == identity(payload)
    ]
    for _, location in sorted(alike, reverse=True):
        with suppress(StoreError):  # it is damaged, or was collected just now
            return store.get(location, hashed=False)  # each file is checked as it is taken over
    return None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"
