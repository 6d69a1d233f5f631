"""Portions of files that an earlier artifact of the stage has: a file that is added or changed costs its own portions.

A portion depends only on how its source is read, the code, and the names and content of its files. It doesn't matter
which other files and sources there are, or at which revision of a data set they lie. The artifact has a
portions.json, with a line for each portion of each source: its key, its shards of documents, its shard of the ledger,
and its counts. A portion that is taken must equal the one that would be made (law 4), so each file is hashed when it is
linked. If one has changed, the portion is read again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from storage.artifact import Artifact
from storage.digest_cache import remembered_digests
from storage.errors import DamagedArtifact, SourceError
from storage.shards.documents import read_ledger, shard_name, write_ledger
from storage.shards.lines import write_json_lines
from tasks.download import exclude
from tasks.download.exclude import Exclusion
from tasks.shards.incremental import LOOKED_AT, MadeFile, link_same
from tasks.text import tally

RECORD = "portions.json"
DOCUMENTS, LEDGER = "documents", "ledger.parquet"  # in a worker's folder


class Taken(NamedTuple):
    """A portion of an earlier artifact: its counts, and the files that it consists of, by their place in a worker's
    folder."""

    location: str
    counts: dict[str, Any]
    files: dict[str, MadeFile]
    excluding: frozenset[str]  # what that artifact excludes


class Record(NamedTuple):
    """A line of portions.json: the key of a portion, its shards of documents, its shard of the ledger, its counts.
    `taken` names the artifact that it comes from, and isn't written."""

    key: str
    documents: list[int]
    ledger: int | None
    counts: dict[str, Any]
    taken: str = ""


def keys_of(
    name: str,
    reading: Mapping[str, Any],
    portions: Sequence[Iterable[Any]],
    beside: Callable[[Path], str] = lambda path: "",
) -> list[str]:
    """The key of each portion of a source, by names, ranges and content of its files, by what is said of them `beside`
    their content, and by how the source is `reading` them. Raises SourceError."""
    how = json.dumps(reading, sort_keys=True)
    spans = {span.name: span for portion in portions for span in portion}
    here = {file: span.path for file, span in spans.items() if span.address is None}
    try:
        digests = remembered_digests(here.values())
    except OSError as error:
        raise SourceError(f"A file of source {name} can't be read: {error}.", "Check it.") from error
    state = {
        file: f"{span.address.size} {span.address.version}" if span.address else digests[span.path] + beside(span.path)
        for file, span in spans.items()
    }
    return [
        hashlib.sha256(
            json.dumps([how, *([span.name, span.start, span.end, state[span.name]] for span in portion)]).encode()
        ).hexdigest()
        for portion in portions
    ]


def taken_before(
    keys: Sequence[str],
    artifacts: Iterator[Artifact],
    exclusion: Exclusion,
    told: Callable[[str], None],
    *,
    bring: bool = True,
) -> list[Taken | None]:
    """For each key the portion of one of the artifacts, the newest first, or None. Files of a bucket are fetched if
    they are to `bring`. A portion that lacks what is no longer excluded isn't taken."""
    known: dict[str, Taken] = {}
    for earlier in islice(artifacts, LOOKED_AT) if keys else ():
        found = _of(earlier, {*keys} - known.keys(), told, bring)
        known |= {key: taken for key, taken in found.items() if _lacks_nothing(taken, exclusion)}
        if len(known) == len({*keys}):
            break
    return [known.get(key) for key in keys]


def _of(earlier: Artifact, wanted: set[str], told: Callable[[str], None], bring: bool) -> dict[str, Taken]:
    """The wanted portions of an artifact, by key."""
    if earlier.manifest is None or RECORD not in earlier.manifest.files:
        return {}
    known = {}
    try:
        excluding = frozenset(_text(earlier, exclude.RECORD).splitlines())
        for line in filter(None, _text(earlier, RECORD).split("\n")):  # other ends of lines may be within values
            record = Record(**json.loads(line))
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
            known[record.key] = Taken(earlier.location, record.counts, files, excluding)
    except (DamagedArtifact, OSError) as error:
        told(f"not everything is taken from {earlier.location}: {error}")
    return known


def _text(earlier: Artifact, name: str) -> str:
    """The text of a small file of an artifact, empty if there is none. Raises DamagedArtifact."""
    if earlier.manifest is None or name not in earlier.manifest.files:
        return ""
    data = earlier.file(name).read_bytes()
    if hashlib.sha256(data).hexdigest() != earlier.manifest.files[name].sha256:
        raise DamagedArtifact(f"{earlier.location}/{name} has changed bytes.", "Run `gristmill store verify`.")
    return data.decode()


def _lacks_nothing(taken: Taken, exclusion: Exclusion) -> bool:
    """Whether all that a portion lacks because it was excluded still is."""
    return taken.excluding <= exclusion.items or not taken.counts["excluded"]


def take(taken: Taken, source: str, exclusion: Exclusion, folder: Path) -> dict[str, Any] | str:
    """Link the files of a portion into a worker's folder, but write those again that have newly excluded documents.
    Returns the counts. If a file has changed, none is there, and its name is returned."""
    (folder / DOCUMENTS).mkdir()
    for place, made in taken.files.items():
        if not link_same(made, folder / place):
            shutil.rmtree(folder / DOCUMENTS)
            (folder / LEDGER).unlink(missing_ok=True)
            return made.name
    if exclusion.items == taken.excluding:
        return taken.counts
    gone = exclude.without(folder / DOCUMENTS, exclusion)
    if not gone:
        return taken.counts
    ids = sorted([*taken.counts["excluded"], *(document.id for document in gone)])
    before = read_ledger(folder / LEDGER) if LEDGER in taken.files else ()
    others = [row for row in before if row.reason != exclude.REASON]
    (folder / LEDGER).unlink(missing_ok=True)
    said = Counter(taken.counts["said"])
    for document in gone:
        tally.add(said, document, len(document.text.encode("utf-8", "surrogatepass")), -1)
    write_ledger(folder / LEDGER, [*others, *(exclude.verdict(one, source) for one in ids)])
    return {
        **taken.counts,
        "documents": taken.counts["documents"] - len(gone),
        "characters": taken.counts["characters"] - sum(len(document.text) for document in gone),
        "said": +said,
        "excluded": ids,
    }


def write_record(path: Path, records: Iterable[Record], exclusion: Exclusion) -> None:
    """Write portions.json, and exclude.txt if something is."""
    if exclusion:
        (path / exclude.RECORD).write_text("".join(f"{item}\n" for item in sorted(exclusion.items)))
    write_json_lines(path / RECORD, ({**record._asdict(), "taken": ""} for record in records))
