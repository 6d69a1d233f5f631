"""`gristmill trace DOC`: the artifacts of a store that hold a document, and those that learned from it.

Which artifacts hold it is read from their shards. An artifact learned from it if an input has it: its tokens, models
that were trained on them, and what was exported from these. The filter's own models count too. Artifacts of documents
are only named if they hold it, as a stage before may have removed it.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.markup import escape

from flows.tables import new_table
from storage import refs
from storage.artifact import Artifact
from storage.errors import ConfigError, harmless
from storage.manifest import Manifest
from storage.shards.documents import Document, read_batches
from storage.store import Store
from tasks.download.exclude import Exclusion, kind_of

SHARD = re.compile(r"documents/\d+\.parquet")
HOLDS, LEARNED = "holds it", "learned from it"


class Traced(NamedTuple):
    """An artifact that has to do with a document: its place, its refs, how, and the number of its copies there."""

    location: str
    names: list[str]
    how: str
    copies: int


def show_trace(console: Console, store: Store, items: Sequence[str], within: str | None, as_json: bool) -> bool:
    """Print the artifacts that hold documents or learned from them. `items` name them as `download.exclude` does.
    `within` is a ref or location, whose lineage is searched instead of the whole store. Returns whether there is one.
    Raises ConfigError, StoreError."""
    if unknown := [item for item in items if kind_of(item) is None]:
        raise ConfigError(
            f"{unknown[0]!r} is neither an id of 32 digits, the SHA-256 of a text, a URL nor a host.",
            "`gristmill explain` finds a document by the first digits of its id.",
        )
    manifests = dict(store.manifests())
    if within:
        mine = {store.twin(refs.resolve(store, within))}
        while more := {origin for location in mine for origin in _origins(store, manifests.get(location))} - mine:
            mine |= more
        manifests = {location: manifest for location, manifest in manifests.items() if location in mine}
    with console.status("Reading documents …"):
        found = list(trace(store, manifests, Exclusion(items)))
    if as_json:
        print(json.dumps([one._asdict() for one in found], indent=1))
    elif found:
        table = new_table("artifact", "refs", "", "copies", right=["copies"])
        for one in found:
            table.add_row(one.location, escape(harmless(", ".join(one.names))), one.how, f"{one.copies or ''}")
        console.print(table)
    else:
        where = f"the lineage of {within}" if within else store.url
        console.print(f"No artifact of {escape(where)} holds it, and none learned from it.")
    return bool(found)


def trace(store: Store, manifests: Mapping[str, Manifest], documents: Exclusion) -> Iterator[Traced]:
    """The artifacts that hold one of these documents or learned from one, in the order in which they were made."""
    copies: Counter[str] = Counter()
    for location, manifest in manifests.items():
        if any(SHARD.fullmatch(name) for name in manifest.files):
            copies[location] = sum(_copies(store.get(location, hashed=False), documents))
    tainted = {location for location, number in copies.items() if number}
    in_time = sorted(manifests, key=lambda location: manifests[location].created)
    growing = True
    while growing:  # an artifact may be older than a twin of its input
        learned = {
            location
            for location in in_time
            if location not in copies and _origins(store, manifests[location]) & tainted
        }
        growing = not learned <= tainted
        tainted |= learned
    named = _names(store)
    for location in in_time:
        if location in tainted:
            how = HOLDS if copies[location] else LEARNED
            yield Traced(location, named.get(location, []), how, copies[location])


def _copies(artifact: Artifact, documents: Exclusion) -> Iterator[int]:
    """The copies of the documents in each row group of an artifact."""
    for path in artifact.part("documents").files("*.parquet"):
        for _, batch in read_batches(path, ["id", "source", "metadata"] if documents.by_url else ["id"]):
            if documents.by_url:
                rows = zip(*(batch[name].to_pylist() for name in ("id", "source", "metadata")), strict=True)
                yield sum(documents.names(Document(identity, "", source, rest)) for identity, source, rest in rows)
            else:
                yield sum(pc.is_in(batch["id"], value_set=pa.array(sorted(documents.items), pa.string())).to_pylist())


def _origins(store: Store, manifest: Manifest | None) -> set[str]:
    """The artifacts that one was made of, but for parts that have no documents."""
    if manifest is None:
        return set()
    refs_ = [*manifest.origins.values(), *manifest.uses.values()]
    return {store.twin(one.location) for one in refs_ if one.part in ("", "documents")}


def _names(store: Store) -> dict[str, list[str]]:
    """The versions of refs by the artifact that they name."""
    found = defaultdict(list)
    for name in refs.names(store):
        for number, entry in enumerate(refs.history(store, name), 1):
            found[store.twin(entry.location)].append(f"{name}@{number}")
    return found
