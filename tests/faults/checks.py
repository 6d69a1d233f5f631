"""What must hold after a fault: nothing lost, half there or left behind, and the same bytes in the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from storage import leases, maintain, refs
from storage.inspect import verify, verify_refs
from storage.runs import history
from storage.store import STORE_FILE, Store
from tests.faults.scene import Scene, Undisturbed


def digests(store: Store) -> dict[str, str]:
    """The digest of every artifact, by location."""
    return {location: manifest.digest for location, manifest in store.manifests()}


def problems(store: Store, known: dict[str, str]) -> Iterator[str]:
    """What is wrong with a store after a fault: artifacts that are lost or not whole, refs that lead nowhere, and
    files that no garbage collection would find."""
    now = digests(store)
    for location, digest in known.items():
        if now.get(location) != digest:
            yield f"{location} is lost"
    for location in store.locations():
        yield from verify(store, location)
    yield from verify_refs(store).values()
    yield from left_over(store)


def left_over(store: Store) -> Iterator[str]:
    """Files that are neither of the store's own, nor named by a garbage collection."""
    garbage = maintain.find_garbage(store, keep_last=1, settled=0)
    with leases.deletion(store):
        pass  # removes what dead processes have left
    published = set(store.locations())
    kept = {location.partition(".")[0] for location in published}
    named = tuple(f"{path}/" for path in (*garbage.workspaces, *garbage.drafts))
    published |= set(garbage.artifacts)
    own = {STORE_FILE, *(f"refs/{name}.json" for name in refs.names(store)), *map(history.file_of, history.ids(store))}
    for root, names in ((store.local, _local(store.local)), (store.root, _remote(store))):
        for name in names:
            folder, *inner = name.split("/")
            place = "/".join(inner[:2])
            ours = folder == "locks" or place in {"artifacts": published, "insight": kept}.get(folder, set())
            if name not in own and not ours and not f"{root}/{name}/".startswith(named):
                yield f"{name} is left over, and no garbage collection names it"


def _local(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if not path.is_dir()]


def _remote(store: Store) -> list[str]:
    if store.is_folder:
        return []
    store.fs.invalidate_cache()
    return [str(name).removeprefix(store.root).lstrip("/") for name in store.fs.find(store.root)]


def finished(scene: Scene, base: Undisturbed, stage: str) -> Iterator[str]:
    """What is wrong after the run was repeated undisturbed: other bytes than in a store that knew no fault, or traces
    of work."""
    expected = base.before(stage) | base.made[stage]
    now = digests(scene.open())
    for location in sorted(expected.keys() | now.keys()):
        if now.get(location) != expected.get(location):
            yield f"{location} has digest {now.get(location)} instead of {expected.get(location)}"
    for folder in (scene.open().local / "work", scene.open().local / "leases", scene.temporary):
        if folder.is_dir():
            yield from (f"{folder.name}/{path.name} is left after the rerun" for path in sorted(folder.iterdir()))
