"""`gristmill store ls`: the refs of a store that match, the latest first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from rich.console import Console

from flows.tables import new_table
from storage import refs
from storage.errors import DamagedArtifact
from storage.store import Store
from storage.units import duration, size_of


class Wanted(NamedTuple):
    """A selection of refs: names that match or contain the pattern."""

    pattern: str = "*"
    profile: str | None = None
    stage: str | None = None
    versions: bool = False

    def matches(self, name: str) -> bool:
        """Whether a ref is in the selection."""
        profile, _, stage = name.rpartition("/")
        named = fnmatchcase(name, self.pattern) or self.pattern in name
        return named and self.profile in (None, profile) and self.stage in (None, stage)


class Version(NamedTuple):
    """One version of a ref. The location of an unreadable ref is empty."""

    ref: str
    time: str
    location: str


def list_refs(console: Console, store: Store, wanted: Wanted, limit: int | None, json_wanted: bool) -> None:
    """Print the newest `limit` versions as a table or a JSON list. Reads only their manifests."""
    versions = sorted(_versions(store, wanted), key=lambda version: version.time, reverse=True)
    rows = [_row(store, version) for version in versions[:limit]]
    if json_wanted:
        print(json.dumps(rows, indent=1))
        return
    table = new_table("ref", "artifact", "size", "made", "in", right=["size", "in"])
    for row in rows:
        stage, _, key = row["artifact"].partition("/")
        size = row["problem"] or size_of(row["bytes"])
        seconds = "" if row["seconds"] is None else duration(row["seconds"])
        table.add_row(row["ref"], f"{stage}/{key[:12]}" if key else "", size, row["created"][:19], seconds)
    console.print(table if rows else "No ref matches.")
    if len(versions) > len(rows):
        console.print(f"\n{len(versions) - len(rows)} more: --all, or a PATTERN, --profile, --stage.")


def _versions(store: Store, wanted: Wanted) -> Iterator[Version]:
    for name in filter(wanted.matches, refs.names(store)):
        try:
            entries = refs.history(store, name)
        except DamagedArtifact:
            yield Version(name, "9", "")  # sorts before all others
            continue
        first = 0 if wanted.versions else len(entries) - 1
        for number, entry in enumerate(entries[first:], first + 1):
            yield Version(f"{name}@{number}", entry.time, entry.location)


def _row(store: Store, version: Version) -> dict[str, Any]:
    manifest, problem = None, "damaged"
    if version.location:
        try:
            manifest, problem = store.manifest(version.location), "gone"
        except DamagedArtifact:
            problem = "damaged"
    return {
        "ref": version.ref,
        "artifact": version.location,
        "bytes": manifest.size if manifest else None,
        "created": manifest.created if manifest else "",
        "seconds": float(manifest.facts.get("seconds", 0)) if manifest else None,
        "problem": "" if manifest else problem,
    }
