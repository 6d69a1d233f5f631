"""The records in a store: writes them whole, finds them by id, lists the newest first, and names the oldest to
prune."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from storage.errors import StoreError
from storage.files.disk import FULL
from storage.runs.record import FOLDER, RunRecord, parse_record
from storage.store import Store

KEPT = 500  # records that a collection keeps, of 10 to 20 kB each
LAST = "last"


def write(store: Store, record: RunRecord) -> None:
    """Replace a record, so that readers see the old one or the new one. On a full disk the old one is deleted first,
    and if that is not enough, no record is left rather than an untrue one."""
    try:
        store.write_text(file_of(record.id), record.to_json())
    except OSError as error:
        if error.errno not in FULL:
            raise
        remove(store, record.id)
        store.write_text(file_of(record.id), record.to_json())


def remove(store: Store, run: str) -> None:
    """Delete the record of a run, if any."""
    store.discard(file_of(run))


def waiting(store: Store, flow_run: str) -> RunRecord | None:
    """The record that a flow run of Prefect left when it began to wait for a person."""
    for record in records(store):
        if isinstance(record, RunRecord) and record.state == "waiting" and record.flow_run == flow_run:
            return record
    return None


def file_of(run: str) -> str:
    """The path of a run's record in the store."""
    return f"{FOLDER}/{run}.json"


def ids(store: Store) -> list[str]:
    """The ids of all records, newest first."""
    return sorted((name.removesuffix(".json") for name in store.names(FOLDER) if _is_record(name)), reverse=True)


def _is_record(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")


def read(store: Store, run: str) -> RunRecord | None:
    """The record of a run, or None. Raises DamagedArtifact."""
    data = store.read_bytes(file_of(run))
    return None if data is None else parse_record(data, run)


def find(store: Store, text: str) -> RunRecord:
    """The record that a user's text names: an id, its beginning, or `last`. Raises StoreError."""
    if not text:
        raise StoreError("The run's id is empty.", "Give an id, its beginning, or last: `gristmill runs` lists them.")
    known = ids(store)
    matches = known[:1] if text == LAST else [run for run in known if run.startswith(text)]
    if not known:
        raise StoreError(f"{store.url} has no records of runs.", "Check --store. Each run leaves a record.")
    if not matches:
        raise StoreError(
            f"Run {text} is not in the store {store.url}.", f"`gristmill runs` lists them. The last is {known[0]}."
        )
    if len(matches) > 1 and text not in matches:
        raise StoreError(
            f"{text} matches {len(matches)} runs.",
            f"Give more of the id: {', '.join(matches[:3])}{' …' if len(matches) > 3 else ''}",
        )
    record = read(store, text if text in matches else matches[0])
    if record is None:
        raise StoreError(f"The record of the run {matches[0]} is gone.", "`gristmill runs` lists the others.")
    return record


def records(store: Store, since: float = 0.0) -> Iterator[RunRecord | StoreError]:
    """Every record of a run that started after `since` (seconds since 1970), newest first. An unreadable record is its
    error."""
    for run in ids(store):
        if started(run) < since:
            continue
        try:
            record = read(store, run)
        except StoreError as error:
            yield error
            continue
        if record is not None:
            yield record


def started(run: str) -> float:
    """The start of a run by its id, in seconds since 1970, or 0 if it is not an id."""
    try:
        return datetime.strptime(run[:19], "%Y-%m-%dT%H-%M-%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def oldest(store: Store, kept: int = KEPT) -> list[str]:
    """The ids of the oldest records, which a collection deletes."""
    return ids(store)[kept:]
