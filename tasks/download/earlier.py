"""Portions of files that an earlier artifact of the stage has: a file that is added or changed costs its own portions.

A portion depends only on the config, the code, and the names and content of its files. The artifact has a
portions.json, with a line for each portion of each source: its key, its shards of documents, its shard of the ledger,
and its counts. A portion that is taken must equal the one that would be made (law 4), so each file is hashed when it is
linked. If one has changed, the portion is read again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from storage.artifact import Artifact
from storage.digest_cache import remembered_digests
from storage.errors import DamagedArtifact, SourceError
from storage.shards.documents import shard_name
from storage.shards.lines import read_json_lines, write_json_lines
from tasks.shards.incremental import LOOKED_AT, MadeFile, link_same

RECORD = "portions.json"
DOCUMENTS, LEDGER = "documents", "ledger.parquet"  # in a worker's folder


class Taken(NamedTuple):
    """A portion of an earlier artifact: its counts, and the files that it consists of, by their place in a worker's
    folder."""

    location: str
    counts: dict[str, Any]
    files: dict[str, MadeFile]


class Record(NamedTuple):
    """A line of portions.json: the key of a portion, its shards of documents, its shard of the ledger, its counts.
    `taken` names the artifact that it comes from, and isn't written."""

    key: str
    documents: list[int]
    ledger: int | None
    counts: dict[str, Any]
    taken: str = ""


def keys_of(source: str, portions: Sequence[Iterable[Any]]) -> list[str]:
    """The key of each portion of a source, by names, ranges and content of its files. Raises SourceError."""
    spans = {span.name: span for portion in portions for span in portion}
    here = {name: span.path for name, span in spans.items() if span.address is None}
    try:
        digests = remembered_digests(here.values())
    except OSError as error:
        raise SourceError(f"A file of source {source} can't be read: {error}.", "Check it.") from error
    state = {
        name: digests[span.path] if span.address is None else f"{span.address.size} {span.address.version}"
        for name, span in spans.items()
    }
    return [
        hashlib.sha256(
            json.dumps([source, *([span.name, span.start, span.end, state[span.name]] for span in portion)]).encode()
        ).hexdigest()
        for portion in portions
    ]


def taken_before(
    keys: Sequence[str], artifacts: Iterator[Artifact], told: Callable[[str], None], *, bring: bool = True
) -> list[Taken | None]:
    """For each key the portion of one of the artifacts, the newest first, or None. Files of a bucket are fetched if
    they are to `bring`."""
    known: dict[str, Taken] = {}
    for earlier in islice(artifacts, LOOKED_AT) if keys else ():
        known |= _of(earlier, {*keys} - known.keys(), told, bring)
        if len(known) == len({*keys}):
            break
    return [known.get(key) for key in keys]


def _of(earlier: Artifact, wanted: set[str], told: Callable[[str], None], bring: bool) -> dict[str, Taken]:
    """The wanted portions of an artifact, by key."""
    if earlier.manifest is None or RECORD not in earlier.manifest.files:
        return {}
    known = {}
    try:
        if earlier.file_digest(earlier.file(RECORD)) != hashlib.sha256(earlier.file(RECORD).read_bytes()).hexdigest():
            told(f"{earlier.location}/{RECORD} has changed bytes: nothing is taken from there")
            return {}
        for row in read_json_lines(earlier.file(RECORD)):
            record = Record(**row)
            if record.key not in wanted:
                continue
            places = {
                f"{DOCUMENTS}/{shard_name(at)}": f"documents/{shard_name(number)}"
                for at, number in enumerate(record.documents)
            }
            if record.ledger is not None:
                places[LEDGER] = f"ledger/{shard_name(record.ledger)}"
            if bring:
                earlier.bring(places.values())
            files = {
                place: MadeFile(
                    earlier.folder / name, earlier.manifest.files[name].sha256, f"{earlier.location}/{name}"
                )
                for place, name in places.items()
            }
            known[record.key] = Taken(earlier.location, record.counts, files)
    except (DamagedArtifact, OSError) as error:
        told(f"not everything is taken from {earlier.location}: {error}")
    return known


def take(taken: Taken, folder: Path) -> str:
    """Link the files of a portion into a worker's folder. If one has changed, none is there, and its name returned."""
    (folder / DOCUMENTS).mkdir()
    for place, made in taken.files.items():
        if not link_same(made, folder / place):
            shutil.rmtree(folder / DOCUMENTS)
            (folder / LEDGER).unlink(missing_ok=True)
            return made.name
    return ""


def write_record(path: Path, records: Iterable[Record]) -> None:
    """Write portions.json."""
    write_json_lines(path / RECORD, ({**record._asdict(), "taken": ""} for record in records))
