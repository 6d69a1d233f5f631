"""Notes on sources that lost many of their documents: how many, and by which rules."""

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

MUCH = 0.2  # a run mentions a source that loses more than this share of its documents
RULES = 3  # named for each source
# A stage's table of documents by source, and the column of those that came in
TABLES = {"dedup": ("Removed by source", "in"), "filter": ("By source", "documents")}


def loss_notes(made: Mapping[str, Artifact], store: str) -> Iterator[str]:
    """A sentence for each stage and source that lost many documents; then the command that lists them, and the remedy
    if rules for web pages removed them. `store` is its address."""
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
        yield f"  To list them: gristmill explain --removed-by {rule}{escape(at_store(store))}"
    if any(rule.partition(".")[0] in HEURISTICS for rule in first):
        yield "  These rules are for web pages. For books, documentation and wikis: `filter: {preset: clean}`."


def emptied_sources(clean: Artifact) -> dict[str, Counter[str]]:
    """By source of which the filter kept nothing, the documents removed for each reason."""
    title, column = TABLES["filter"]
    rows = clean.manifest.counts.get("tables", {}).get(title, []) if clean.manifest else []
    emptied = [row["source"] for row in rows if row[column] and not row["kept"]]
    reasons = _reasons(clean) if emptied else {}
    return {source: reasons.get(source, Counter()) for source in emptied}


def _lossy(stage: str, artifact: Artifact) -> dict[str, int]:
    """The documents that came in, for each source that lost many, by the stage's counts."""
    title, column = TABLES[stage]
    rows = artifact.manifest.counts.get("tables", {}).get(title, []) if artifact.manifest else []
    return {row["source"]: row[column] for row in rows if row[column] - row["kept"] > MUCH * row[column]}


def _reasons(artifact: Artifact) -> dict[str, Counter[str]]:
    """By source, the documents removed for each reason. From a bucket this fetches only the ledger."""
    by_source: dict[str, Counter[str]] = {}
    for path in artifact.part("ledger").files("*.parquet"):
        for _, batch in read_batches(path, ["source", "verdict", "reason"]):
            removed = batch.filter(pc.not_equal(batch["verdict"], "changed"))
            sources, reasons = removed["source"].to_pylist(), removed["reason"].to_pylist()
            for (source, reason), number in Counter(zip(sources, reasons, strict=True)).items():
                by_source.setdefault(source, Counter())[reason] += number
    return by_source
