"""What a run says of the sources that lost much of their documents: how many, and by which rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow.compute as pc
from rich.markup import escape

from flows.tables import harmless
from storage.artifact import Artifact
from storage.shards.documents import read_batches
from tasks.filter.presets import HEURISTICS

MUCH = 0.2  # of a source's documents, from which on a run says so
RULES = 3  # that are named
STAGES = ("dedup", "filter")


def told_losses(made: Mapping[str, Artifact], profile: str) -> Iterator[str]:
    """A sentence for each stage and source that lost much; then what shows more, and what to do if it was by rules for
    pages of the web."""
    first = Counter[str]()
    for stage in STAGES:
        for source, (kept, removed) in sorted(_by_source(made[stage].path).items() if stage in made else ()):
            total = kept + removed.total()
            if removed.total() <= MUCH * total:
                continue
            named = ", ".join(f"{rule} {count:,}" for rule, count in removed.most_common(RULES))
            others = removed.total() - sum(count for _, count in removed.most_common(RULES))
            named += f", and {others:,} by {len(removed) - RULES} others" * bool(others)
            share = f"{removed.total():,} of {total:,} documents ({removed.total() / total:.0%})"
            yield f"[yellow]{stage} removed {share} of {escape(harmless(source))}[/]: {escape(named)}."
            first.update(dict(removed.most_common(1)))
    if first:
        yield f"  Which they are: gristmill explain --removed-by {escape(first.most_common(1)[0][0])} {escape(profile)}"
    if any(rule.partition(".")[0] in HEURISTICS for rule in first):
        yield "  These rules are for pages of the web. For books, documentation and wikis: `filter: {preset: clean}`."


def _by_source(folder: Path) -> dict[str, tuple[int, Counter[str]]]:
    """Of each source the number of documents that were kept, and of those that were not by reason."""
    found: dict[str, tuple[int, Counter[str]]] = {}
    for path in sorted((folder / "documents").glob("*.parquet")):
        for _, batch in read_batches(path, ["source"]):
            for row in batch["source"].value_counts().to_pylist():
                kept, removed = found.get(row["values"], (0, Counter[str]()))
                found[row["values"]] = (kept + row["counts"], removed)
    for path in sorted((folder / "ledger").glob("*.parquet")):
        for _, batch in read_batches(path, ["source", "verdict", "reason"]):
            removed = batch.filter(pc.not_equal(batch["verdict"], "changed"))
            sources, reasons = removed["source"].to_pylist(), removed["reason"].to_pylist()
            for (source, reason), number in Counter(zip(sources, reasons, strict=True)).items():
                found.setdefault(source, (0, Counter[str]()))[1][reason] += number
    return found
