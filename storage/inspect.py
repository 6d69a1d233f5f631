"""Inspecting a store: lineage, differences, verification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from storage import refs
from storage.errors import DamagedArtifact, make_again, no_artifact
from storage.keys import differences
from storage.manifest import Manifest
from storage.store import Store


@dataclass(frozen=True)
class LineageNode:
    """A node of the lineage tree: an artifact, `depth` steps upstream of the root."""

    depth: int
    name: str
    location: str
    part: str
    manifest: Manifest | None
    repeated: bool = False


def lineage(store: Store, location: str) -> Iterator[LineageNode]:
    """The tree from an artifact to its sources, depth first. A repeated node is listed but not expanded."""
    yield from _walk(store, location, "", "", 0, set())


def _walk(store: Store, location: str, name: str, part: str, depth: int, seen: set[str]) -> Iterator[LineageNode]:
    location = store.twin(location)
    manifest = store.manifest(location)
    repeated = location in seen
    yield LineageNode(depth, name, location, part, manifest, repeated)
    if manifest is None or repeated:
        return
    seen.add(location)
    for child, origin in {**manifest.origins, **manifest.uses}.items():
        yield from _walk(store, origin.location, child, origin.part, depth + 1, seen)


def compare(store: Store, first: str, second: str) -> list[tuple[str, Any, Any]]:
    """The differences of two artifacts in config, inputs and counts, including scores: (path, first, second)."""
    one, two = _manifest(store, first), _manifest(store, second)
    return differences(_comparable(one), _comparable(two))


def _comparable(manifest: Manifest) -> dict[str, Any]:
    counts = {name: value for name, value in manifest.counts.items() if name != "tables"}
    payload = manifest.payload.model_dump()
    return {"stage": payload["stage"], "config": payload["config"], "inputs": payload["inputs"], "counts": counts}


def verify(store: Store, location: str) -> list[str]:
    """Hash an artifact again. Returns a phrase for each difference from what was published, or empty if it is intact.

    For a bucket this hashes the bucket's files, not the local cache.
    """
    try:
        manifest = _manifest(store, location)
    except DamagedArtifact as error:
        return [error.message.rstrip(".")]
    return store.damage(manifest, location)


def verify_refs(store: Store) -> dict[str, str]:
    """A phrase for each ref that can't be read, or points to a missing or another artifact."""
    problems = {}
    for name in refs.names(store):
        try:
            newest = refs.history(store, name)[-1]
            manifest = store.manifest(newest.location)
        except DamagedArtifact as error:
            problems[name] = error.message.rstrip(".")
            continue
        if manifest is None:
            problems[name] = f"the ref {name} points to {newest.location}, which is gone"
        elif manifest.digest != newest.digest:
            problems[name] = f"the ref {name} names another digest than {newest.location} has"
    return problems


def check(store: Store, location: str) -> None:
    """Run `verify`, and raise DamagedArtifact if it finds anything."""
    problems = verify(store, location)
    if problems:
        stage = location.partition("/")[0]
        raise DamagedArtifact("; ".join(problems) + ".", make_again(stage))


def _manifest(store: Store, location: str) -> Manifest:
    manifest = store.manifest(location)
    if manifest is None:
        raise no_artifact(location, store.url)
    return manifest
