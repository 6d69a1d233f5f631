"""The records in a store: written whole, found by id, listed from the newest, and the oldest of many pruned."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from storage.errors import StoreError
from storage.files.disk import FULL
from storage.runs.record import FOLDER, RunRecord, parsed
from storage.store import Store

KEPT = 500  # records that a collection keeps, of 10 to 20 kB each
LAST = "last"


def write(store: Store, record: RunRecord) -> None:
    """Write a record in place of what is there, so that readers see the old one or the new. On a full disk the old one
    gives its place to the new one, and where that is not enough there is none, rather than one that is not true."""
    try:
        store.write_text(file_of(record.id), record.to_json())
    except OSError as error:
        if error.errno not in FULL:
            raise
        remove(store, record.id)
        store.write_text(file_of(record.id), record.to_json())


def remove(store: Store, run: str) -> None:
    """Delete the record of a run, if there is one."""
    store.discard(file_of(run))


def waiting(store: Store, flow_run: str) -> RunRecord | None:
    """The record that a flow run of Prefect left when it began to wait for a person."""
    for found in records(store):
        if isinstance(found, RunRecord) and found.state == "waiting" and found.flow_run == flow_run:
            return found
    return None


def file_of(run: str) -> str:
    """Where the record of a run lies in the store."""
    return f"{FOLDER}/{run}.json"


def ids(store: Store) -> list[str]:
    """The ids of all records, newest first."""
    return sorted((name.removesuffix(".json") for name in store.names(FOLDER) if _is_record(name)), reverse=True)


def _is_record(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")


def read(store: Store, run: str) -> RunRecord | None:
    """The record of a run, or None if there is none. Raises DamagedArtifact."""
    data = store.read_bytes(file_of(run))
    return None if data is None else parsed(data, run)


def find(store: Store, text: str) -> RunRecord:
    """The record that a user's text names: an id, the beginning of one, or `last`. Raises StoreError."""
    if not text:
        raise StoreError("No run is named.", "Give an id, the beginning of one, or last: `gristmill runs` lists them.")
    known = ids(store)
    found = known[:1] if text == LAST else [run for run in known if run.startswith(text)]
    if not known:
        raise StoreError(f"There is no record of a run in {store.url}.", "Check --store; each run leaves one.")
    if not found:
        raise StoreError(
            f"There is no run {text} in {store.url}.", f"`gristmill runs` lists them; the last is {known[0]}."
        )
    if len(found) > 1 and text not in found:
        raise StoreError(
            f"{text} matches {len(found)} runs.",
            f"Give more of the id: {', '.join(found[:3])}{' …' if len(found) > 3 else ''}",
        )
    record = read(store, text if text in found else found[0])
    if record is None:
        raise StoreError(f"The record of the run {found[0]} is gone.", "`gristmill runs` lists those that are there.")
    return record


def records(store: Store, since: float = 0.0) -> Iterator[RunRecord | StoreError]:
    """Every record of a run that began `since` (seconds since 1970), newest first; in the place of one that can't be
    read, why."""
    for run in ids(store):
        if started(run) < since:
            continue
        try:
            found = read(store, run)
        except StoreError as error:
            yield error
            continue
        if found is not None:
            yield found


def started(run: str) -> float:
    """When a run began, by its id: seconds since 1970. 0 of what is no id."""
    try:
        return datetime.strptime(run[:19], "%Y-%m-%dT%H-%M-%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def beyond(store: Store, kept: int = KEPT) -> list[str]:
    """The ids of the oldest records, which a collection deletes."""
    return ids(store)[kept:]
