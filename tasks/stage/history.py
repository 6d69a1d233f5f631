"""A stage's history: why an artifact must be made, what can be taken over from an earlier one, and how long killed
attempts took."""

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
    """Why an artifact must be made: the differences from the profile's last one, or else from the stage's nearest one.
    Digests aren't shown: `gristmill why` has them."""
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
    """A field that differs, in words: of an input only its name."""
    section, _, name = path.partition(".")
    if section != "inputs":
        return f"{path.removeprefix('config.')}: {_short(old)} → {_short(new)}"
    outside = name.removeprefix("source:")
    if old is None or new is None:
        return f"{outside} is {'new' if old is None else 'gone'}"
    return f"other {name}" if outside == name else f"{outside} has changed"


def _readable(store: Store, location: str) -> Manifest | None:
    """A manifest to compare with, or None if it is damaged."""
    with suppress(StoreError):
        return store.manifest(location)
    return None


def nearest(store: Store, payload: KeyPayload, *, but: str = "") -> Manifest | None:
    """The stage's artifact, other than `but`, whose payload differs in the fewest fields. Of equals, the newest."""
    known = sorted((manifest for _, manifest in store.manifests(payload.stage)), key=lambda m: m.created, reverse=True)
    target = payload.model_dump()
    known = [manifest for manifest in known if manifest.key != but]
    return min(known, key=lambda m: len(differences(m.payload.model_dump(), target)), default=None)


def find_earlier(
    store: Store,
    payload: KeyPayload,
    source: str,
    told: Callable[[str], None],
    changes: Callable[[str], bool],
    besides: Collection[str] = (),
) -> Iterator[Artifact]:
    """The stage's artifacts with this version, config, source code, libraries and inputs, the newest first. Inputs
    whose name `changes`, and the fields of the config in `besides`, may differ. Only sound ones: the manifest agrees
    with itself and the files are there. The rest are reported to `told`."""

    def identity(of: KeyPayload) -> tuple[Any, ...]:
        config = {name: value for name, value in of.config.items() if name not in besides}
        return of.version, config, {name: of.inputs[name] for name in of.inputs if not changes(name)}

    alike = [
        (manifest.created, location)
        for location, manifest in store.manifests(payload.stage)
        if manifest.source_digest == source
        and identity(manifest.payload) == identity(payload)
        and shapes_alike(manifest.environment)
    ]
    for _, location in sorted(alike, reverse=True):
        try:
            found = store.get(location, hashed=False)  # each file is hashed when it is taken over
        except StoreError as error:  # damaged, or just collected
            told(f"nothing is taken from {location}: {error.message}")
            continue
        yield found


def ever_made(store: Store, stage: str, told: Callable[[str], None]) -> Iterator[Artifact]:
    """Every sound artifact of a stage, whatever it was made of and by, the newest first. The rest are reported to
    `told`."""
    found = [(manifest.created, location) for location, manifest in store.manifests(stage)]
    for _, location in sorted(found, reverse=True):
        try:
            yield store.get(location, hashed=False)
        except StoreError as error:
            told(f"nothing is taken from {location}: {error.message}")


def attempt(work: Path, told: Callable[[str], None], *, anew: bool) -> dict[str, Any]:
    """Note in its working folder that an artifact is begun. Returns the facts of earlier attempts, if any since it was
    last begun from scratch (`anew`): the number including this one, their seconds, and when the first began.

    A killed attempt couldn't note its end (see `attempted`), so it counts as working until it last wrote a file. An
    unreadable note is reported to `told`, and the earlier attempts don't count.
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
        except (OSError, ValueError, KeyError, TypeError):  # damaged, or cut short by the kill
            told(f"{file} can't be read: the time of earlier attempts is not counted")
    file.write_text(json.dumps({"number": number, "seconds": seconds, "first": first, "began": now}))
    if number == 1:
        return {}
    return {"attempts": number, "earlier_seconds": round(seconds, 3), "first_begun": first}


@contextmanager
def attempted(work: Path) -> Iterator[None]:
    """Within the block an artifact is made in its working folder. However the block ends, short of a kill, the end of
    the attempt is noted."""
    try:
        yield
    finally:
        with suppress(OSError):
            (work / ATTEMPTS).touch()


def _short(value: Any) -> str:
    """A value as a profile has it. Long lists and texts are shortened."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if len(text) <= 40:
        return text
    return f"{len(value)} values" if isinstance(value, list | tuple) else f"{text[:12]}…"
