"""What a stage did before: why an artifact must be made, what of an earlier one can be taken over, and how long
attempts at it took that were killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from storage import refs
from storage.artifact import Artifact
from storage.errors import StoreError
from storage.keys import KeyPayload, differences
from storage.manifest import Manifest
from storage.store import Store
from tasks.stage.environment import shapes_alike

NEVER_MADE = "never made before"
FIRST_RUN = "first run of "
SHOWN = 6  # reasons
ATTEMPTS = "attempts.json"  # in an artifact's working folder


def explain_miss(store: Store, payload: KeyPayload, refresh: bool = False, profile: str = "") -> str:
    """Why an artifact must be made: what differs from the one that the profile had last, or else from the nearest of
    the stage. Digests are not shown; `gristmill why` has them."""
    if refresh:
        return "refresh was asked for"
    entries = refs.history(store, f"{profile}/{payload.stage}") if profile else []
    found = (_readable(store, entries[-1].location) if entries else None) or nearest(store, payload)
    if found is None:
        return NEVER_MADE
    if profile and not entries:
        return f"{FIRST_RUN}{profile}"
    changed = differences(found.payload.model_dump(), payload.model_dump())
    if not changed:
        return "its artifact is gone"
    told = list(dict.fromkeys(_told(path, old, new) for path, old, new in changed))
    return "; ".join(told[:SHOWN]) + (f"; and {len(told) - SHOWN} more" if len(told) > SHOWN else "")


def _told(path: str, old: Any, new: Any) -> str:
    """A field that differs, in words: what was read by its name alone."""
    section, _, name = path.partition(".")
    if section != "inputs":
        return f"{path.removeprefix('config.')}: {_short(old)} → {_short(new)}"
    outside = name.removeprefix("source:")
    if old is None or new is None:
        return f"{outside} is {'new' if old is None else 'gone'}"
    return f"other {name}" if outside == name else f"{outside} has changed"


def _readable(store: Store, location: str) -> Manifest | None:
    """A manifest to compare with: a damaged one is none."""
    with suppress(StoreError):
        return store.manifest(location)
    return None


def nearest(store: Store, payload: KeyPayload, *, but: str = "") -> Manifest | None:
    """The stage's artifact whose payload differs in the fewest fields, the newest of equals; not `but`."""
    known = sorted((manifest for _, manifest in store.manifests(payload.stage)), key=lambda m: m.created, reverse=True)
    target = payload.model_dump()
    known = [manifest for manifest in known if manifest.key != but]
    return min(known, key=lambda m: len(differences(m.payload.model_dump(), target)), default=None)


def find_earlier(
    store: Store, payload: KeyPayload, source: str, told: Callable[[str], None], changing: Collection[str]
) -> Iterator[Artifact]:
    """The artifacts of the stage with this version, config, source code and inputs, but for the `changing` ones, that
    the same libraries have made, the newest first: those that can be trusted, whose manifest agrees with itself and
    whose files are there; of others it is `told`."""

    def identity(of: KeyPayload) -> tuple[Any, ...]:
        return of.version, of.config, {name: of.inputs[name] for name in of.inputs if name not in changing}

    alike = [
        (manifest.created, location)
        for location, manifest in store.manifests(payload.stage)
        if manifest.source_digest == source
        and identity(manifest.payload) == identity(payload)
        and shapes_alike(manifest.environment)
    ]
    for _, location in sorted(alike, reverse=True):
        try:
            found = store.get(location, hashed=False)  # each file is checked as it is taken over
        except StoreError as error:  # it is damaged, or was collected just now
            told(f"nothing is taken from {location}: {error.message}")
            continue
        yield found


def attempt(work: Path, told: Callable[[str], None], *, anew: bool) -> dict[str, Any]:
    """Note that an artifact is begun in its working folder, and give the facts of attempts before, if there were any
    since it was last begun `anew`: how many there are with this one, the seconds that they took, and when the first
    began.

    One that was killed could not say when it ended (see `attempted`): it is taken to have worked until it last wrote a
    file. Where the note of earlier ones can't be read, `told` is told that they don't count.
    """
    file, now = work / ATTEMPTS, time.time()
    number, seconds, first = 1, 0.0, now
    if not anew:
        try:
            before = json.loads(file.read_bytes())
            written = max(path.lstat().st_mtime for path in [file, *work.rglob("*")])
            took = max(0.0, written - float(before["began"]))
            number, seconds, first = int(before["number"]) + 1, float(before["seconds"]) + took, float(before["first"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError):  # damaged, or the kill left a part of it
            told(f"{file} can't be read: the time of earlier attempts is not counted")
    file.write_text(json.dumps({"number": number, "seconds": seconds, "first": first, "began": now}))
    if number == 1:
        return {}
    return {"attempts": number, "earlier_seconds": round(seconds, 3), "first_begun": first}


@contextmanager
def attempted(work: Path) -> Iterator[None]:
    """Within the block an artifact is made in its working folder; what ends the block ends the attempt, unless it is a
    kill."""
    try:
        yield
    finally:
        with suppress(OSError):
            (work / ATTEMPTS).touch()


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"
