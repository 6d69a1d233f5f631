"""`gristmill trace DOC`: the artifacts of a store that hold a document, and those that learned from it.

Which artifacts hold it is read from their shards. An artifact learned from it if an input has it: its tokens, models
that were trained on them, and what was exported from these. The filter's own models count too. Artifacts of documents
are only named if they hold it, as a stage before may have removed it. Of a pretraining whose tokens have it, the steps
that read it are named.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.commands.documents.reads import Reads, columns_for, named_rows, reads_of
from flows.tables import new_table
from storage import refs
from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, harmless
from storage.manifest import Manifest
from storage.shards.documents import read_batches
from storage.store import Store
from tasks.download.config import PAIR_ROLES
from tasks.download.exclude import Exclusion, kind_of

SHARD = re.compile(r"(documents|removed)/\d+\.parquet")
WITHOUT = {"benchmarks", "contamination", *PAIR_ROLES}
HOLDS, LEARNED = "holds it", "learned from it"


class Traced(NamedTuple):
    """An artifact that has to do with a document: its place, its refs, how, the number of its copies there, and of a
    pretraining the steps that read it."""

    location: str
    names: list[str]
    how: str
    copies: int
    reads: Reads | None

    def as_json(self) -> dict[str, Any]:
        """As `--json` has it."""
        return {**self._asdict(), "reads": self.reads and self.reads.as_json()}


def exclusion_of(items: Sequence[str]) -> Exclusion:
    """The documents that items name. Raises ConfigError for one that names none."""
    if unknown := [item for item in items if kind_of(item) is None]:
        raise ConfigError(
            f"{unknown[0]!r} is neither an id of 32 digits, the SHA-256 of a text, a URL nor a host.",
            "`gristmill explain` finds a document by the first digits of its id.",
        )
    return Exclusion(items)


def manifests_of(store: Store) -> tuple[dict[str, Manifest], list[str]]:
    """The manifests of a store, by location, and a phrase for each that can't be read."""
    manifests: dict[str, Manifest] = {}
    damaged = []
    for location in store.locations():
        try:
            manifest = store.manifest(location)
        except DamagedArtifact as error:
            damaged.append(error.message)
            continue
        if manifest is not None:
            manifests[location] = manifest
    return manifests, damaged


def gaps(store: Store, manifests: Mapping[str, Manifest]) -> list[str]:
    """A phrase for each artifact of which one of these was made, but which isn't in the store. Its documents, and so
    what learned from them, aren't known."""
    children: dict[str, list[str]] = defaultdict(list)
    there = set(store.locations())
    for location, manifest in manifests.items():
        for origin in _origins(store, manifest) - there:
            children[origin].append(short(location))
    return [
        f"{origin}, which isn't in the store, and of which {', '.join(sorted(made))} was made."
        for origin, made in sorted(children.items())
    ]


def show_trace(console: Console, store: Store, items: Sequence[str], within: str | None, as_json: bool) -> bool:
    """Print the artifacts that hold documents or learned from them. `items` name them as `download.exclude` does.
    `within` is a ref or location, whose lineage is searched instead of the whole store. Returns whether all could be
    searched. Raises ConfigError, StoreError, and DamagedArtifact for documents whose bytes have changed."""
    named = exclusion_of(items)
    manifests, damaged = manifests_of(store)
    if within:
        mine = {store.twin(refs.resolve(store, within))}
        while more := {origin for location in mine for origin in _origins(store, manifests.get(location))} - mine:
            mine |= more
        manifests = {location: manifest for location, manifest in manifests.items() if location in mine}
    problems = damaged + gaps(store, manifests)
    with console.status("Reading documents …"):
        found = list(trace(store, manifests, named))
    if as_json:
        print(json.dumps([one.as_json() for one in found], indent=1))
    elif found:
        console.print(table_of(found))
    else:
        where = (f"the lineage of {within}" if within else store.url) + (" that can be searched" if problems else "")
        console.print(f"No artifact of {escape(where)} holds it, and none learned from it.")
    for problem in problems:
        print(f"Not searched: {problem}", file=sys.stderr)
    return not problems


def table_of(found: Sequence[Traced]) -> Table:
    """The artifacts as a table."""
    table = new_table("artifact", "refs", "", "copies", "read in", right=["copies"])
    for one in found:
        copies, steps = f"{one.copies or ''}", one.reads.sentence() if one.reads else ""
        table.add_row(short(one.location), escape(harmless(", ".join(one.names))), one.how, copies, escape(steps))
    return table


def short(location: str) -> str:
    """A location with the first digits of its key, as commands take it."""
    stage, _, key = location.partition("/")
    return f"{stage}/{key[:12]}"


def trace(store: Store, manifests: Mapping[str, Manifest], documents: Exclusion) -> Iterator[Traced]:
    """The artifacts that hold one of these documents or learned from one, in the order in which they were made."""
    copies: Counter[str] = Counter()
    tainted = set()
    for location, manifest in manifests.items():
        parts = {match[1] for name in manifest.files if (match := SHARD.fullmatch(name))}
        for part in parts:
            number = sum(_copies(store.get(location, hashed=False).part(part), documents))
            copies[location] += number
            if number and part == "documents":
                tainted.add(location)
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
    named = names_of(store)
    for location in in_time:
        if location in tainted or copies[location]:
            how = HOLDS if copies[location] else LEARNED
            yield Traced(
                location,
                named.get(location, []),
                how,
                copies[location],
                _reads(store, location, manifests[location], tainted, documents),
            )


def _reads(store: Store, location: str, manifest: Manifest, tainted: set[str], documents: Exclusion) -> Reads | None:
    """The steps of a pretraining whose tokens have the documents. None if only its tokenizer or base has."""
    tokens = manifest.origins.get("tokens")
    if manifest.stage != "pretrain" or tokens is None or store.twin(tokens.location) not in tainted:
        return None
    return reads_of(store, store.get(location, hashed=False), documents)


def _copies(part: Artifact, documents: Exclusion) -> Iterator[int]:
    """The copies of the documents in each row group of a part."""
    for path in part.files("*.parquet"):
        part.check_bytes(path)
        for _, batch in read_batches(path, columns_for(documents)):
            yield int(named_rows(batch, documents).sum())


def _origins(store: Store, manifest: Manifest | None) -> set[str]:
    """The artifacts that one was made of, but for their parts that have no documents and learned from none."""
    if manifest is None:
        return set()
    refs_ = [*manifest.origins.values(), *manifest.uses.values()]
    return {store.twin(one.location) for one in refs_ if one.part not in WITHOUT}


def names_of(store: Store) -> dict[str, list[str]]:
    """The versions of refs by the artifact that they name."""
    found = defaultdict(list)
    for name in refs.names(store):
        for number, entry in enumerate(refs.history(store, name), 1):
            found[store.twin(entry.location)].append(f"{name}@{number}")
    return found
