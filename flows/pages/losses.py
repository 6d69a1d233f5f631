"""What a run says of the sources that lost much of their documents: how many, and by which rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import pyarrow.compute as pc
from rich.markup import escape

from flows.options import at_store
from storage.artifact import Artifact
from storage.errors import harmless
from storage.shards.documents import read_batches
from tasks.filter.presets import HEURISTICS

MUCH = 0.2  # of a source's documents, from which on a run says so
RULES = 3  # that are named
# The table of each stage that counts documents by source, and its column of those that came in
TABLES = {"dedup": ("Removed by source", "in"), "filter": ("By source", "documents")}


def told_losses(made: Mapping[str, Artifact], store: str) -> Iterator[str]:
    """A sentence for each stage and source that lost much; then what shows more, and what to do if it was by rules for
    pages of the web. `store` is its address."""
    first = Counter[str]()
    for stage, artifact in ((name, made[name]) for name in TABLES if name in made):
        totals = _lossy(stage, artifact)
        reasons = _reasons(artifact) if totals else {}
        for source, total in totals.items():
            removed = reasons.get(source, Counter[str]())
            named = ", ".join(f"{rule} {count:,}" for rule, count in removed.most_common(RULES))
            others = removed.total() - sum(count for _, count in removed.most_common(RULES))
            named += f", and {others:,} by {len(removed) - RULES} others" * bool(others)
            share = f"{removed.total():,} of {total:,} documents ({removed.total() / total:.0%})"
            yield f"[yellow]{stage} removed {share} of {escape(harmless(source))}[/]: {escape(named)}."
            first.update(dict(removed.most_common(1)))
    if first:
        rule = escape(first.most_common(1)[0][0])
        yield f"  Which they are: gristmill explain --removed-by {rule}{escape(at_store(store))}"
    if any(rule.partition(".")[0] in HEURISTICS for rule in first):
        yield "  These rules are for pages of the web. For books, documentation and wikis: `filter: {preset: clean}`."


def _lossy(stage: str, artifact: Artifact) -> dict[str, int]:
    """How many documents came in, of each source that lost many, by the counts of the stage."""
    title, column = TABLES[stage]
    rows = artifact.manifest.counts.get("tables", {}).get(title, []) if artifact.manifest else []
    return {row["source"]: row[column] for row in rows if row[column] - row["kept"] > MUCH * row[column]}


def _reasons(artifact: Artifact) -> dict[str, Counter[str]]:
    """Of each source how many documents were removed by each reason. Of a bucket the ledger alone is fetched."""
    found: dict[str, Counter[str]] = {}
    for path in artifact.part("ledger").files("*.parquet"):
        for _, batch in read_batches(path, ["source", "verdict", "reason"]):
            removed = batch.filter(pc.not_equal(batch["verdict"], "changed"))
            sources, reasons = removed["source"].to_pylist(), removed["reason"].to_pylist()
            for (source, reason), number in Counter(zip(sources, reasons, strict=True)).items():
                found.setdefault(source, Counter())[reason] += number
    return found
