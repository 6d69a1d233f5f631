"""The filter's report: a funnel through the rules, and examples of what each rule removed.

The tokenizer comes after the filter, so tokens are estimated at four bytes of UTF-8 each. The examples are the
documents with the smallest IDs, so they don't depend on the order of shards. Personal data in them is always replaced,
whatever the profile does elsewhere. It is searched for after they are chosen, because a removed document may not have
been searched.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import AccountingError
from storage.shards.documents import Verdict
from tasks.filter.config import FilterConfig
from tasks.filter.decide import Decisions
from tasks.filter.families import redact, rules
from tasks.filter.repair.stage import EMPTIED
from tasks.filter.rules import Rule, reason
from tasks.shards import map_shards
from tasks.stage.display.figures import plot_funnel
from tasks.stage.display.pages import markdown_table
from tasks.stage.output import Output

EXAMPLES = 3  # per rule
EXCERPT = 200  # characters per example
SEARCHED = 10_000  # characters searched for personal data: more than an excerpt can show after replacements
BYTES_A_TOKEN = 4
REPORT, PLOT = "report.md", "funnel.png"


class Example(NamedTuple):
    """One removed document, with the beginning of its text as it is."""

    id: str
    source: str
    value: float | None
    text: str


@dataclass
class Tally:
    """Counts of documents and UTF-8 bytes, which add up over row groups and shards. Keys of `stopped` are reasons."""

    seen: int = 0
    seen_bytes: int = 0
    kept: int = 0
    stopped: Counter[str] = field(default_factory=Counter)
    stopped_bytes: Counter[str] = field(default_factory=Counter)
    quarantined: int = 0
    changed: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    kept_sources: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Example]] = field(default_factory=dict)

    def add(
        self, documents: pa.RecordBatch, decisions: Decisions, tests: Sequence[Rule], changes: Iterable[Verdict]
    ) -> None:
        """Count one row group."""
        sizes = pc.binary_length(documents["text"]).to_numpy(zero_copy_only=False).astype(np.int64)
        kept = decisions.kept
        self.seen += documents.num_rows
        self.seen_bytes += int(sizes.sum())
        self.kept += int(kept.sum())
        self.quarantined += int(decisions.unmeasured.sum())
        self.changed.update(verdict.reason for verdict in changes)
        self.sources.update(_counts(documents["source"]))
        self.kept_sources.update(_counts(documents["source"].filter(pa.array(kept))))
        for number, unmeasured, rows in decisions.stopped():
            name = reason(tests[number], unmeasured)
            self.stopped[name] += len(rows)
            self.stopped_bytes[name] += int(sizes[rows].sum())
            self._show(name, documents, decisions, rows)

    def add_repairs(self, verdicts: pa.RecordBatch) -> None:
        """Count the repair's changes, and the documents that it removed because nothing was left of them."""
        emptied = verdicts.filter(pc.equal(verdicts["verdict"], "removed"))
        self.seen += emptied.num_rows
        self.stopped.update(_counts(emptied["reason"]))
        self.sources.update(_counts(emptied["source"]))
        self.changed["repair"] += verdicts.num_rows - emptied.num_rows

    def _show(self, name: str, documents: pa.RecordBatch, decisions: Decisions, rows: np.ndarray) -> None:
        ids = documents["id"].take(pa.array(rows)).to_pylist()
        examples = []
        for identity, row in sorted(zip(ids, rows.tolist(), strict=True))[:EXAMPLES]:
            text = documents["text"][row].as_py()[:SEARCHED]
            value = None if decisions.unmeasured[row] else float(decisions.values[row])
            examples.append(Example(identity, documents["source"][row].as_py(), value, text))
        self.examples[name] = sorted([*self.examples.get(name, []), *examples])[:EXAMPLES]

    def merge(self, other: Tally) -> None:
        """Add the counts of another."""
        for name in ("seen", "seen_bytes", "kept", "quarantined"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("stopped", "stopped_bytes", "changed", "sources", "kept_sources"):
            getattr(self, name).update(getattr(other, name))
        for reason_, found in other.examples.items():
            self.examples[reason_] = sorted([*self.examples.get(reason_, []), *found])[:EXAMPLES]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Tally:
        """From plain values."""
        counters = {name: Counter(value) if isinstance(value, dict) else value for name, value in values.items()}
        examples = {name: [Example(*row) for row in rows] for name, rows in values["examples"].items()}
        return cls(**(counters | {"examples": examples}))


def publish(config: FilterConfig, total: Tally, out: Output) -> None:
    """Account for every document, and write funnel, sources and examples as tables and as report.md."""
    removed = {name: count for name, count in total.stopped.items() if not name.startswith("unmeasured")}
    out.account(documents_in=total.seen, kept=total.kept, removed=removed, quarantined=total.quarantined)
    _check_losses(config, total)
    out.count(changed=dict(sorted(total.changed.items())))
    order = [EMPTIED, *(name for test in rules(config) for name in (reason(test, False), reason(test, True)))]
    work = functools.partial(_slow_part, config, total, order)
    examples, plot = map_shards(work, ["Examples", PLOT], out, "report", "parts")
    tables = {
        "Funnel": _funnel(total, order),
        "By source": [
            {"source": source, "documents": count, "kept": total.kept_sources[source]}
            for source, count in sorted(total.sources.items())
        ],
        "Examples": examples.counts["rows"],
    }
    for title, rows in tables.items():
        out.table(title, rows)
    (out.path / PLOT).hardlink_to(plot.folder / PLOT)
    parts = [f"## {title}\n\n{markdown_table(rows)}\n" for title, rows in tables.items()]
    (out.path / REPORT).write_text("\n".join(["# What the filter did\n", *parts]), encoding="utf-8")


def _slow_part(config: FilterConfig, total: Tally, order: list[str], part: str, folder: Path) -> dict[str, Any]:
    """A part of the report that takes the second in which its library is imported."""
    if part == PLOT:
        left = {row["rule"]: row["documents left"] for row in _funnel(total, order)}
        plot_funnel(left, folder / PLOT, title="What each rule removed", unit="documents")
        return {}
    return {"rows": _examples(config, total, order)}


def _check_losses(config: FilterConfig, total: Tally) -> None:
    """Raise AccountingError for a larger loss than the config allows, overall or of a source."""
    if total.quarantined > config.max_quarantined_share * total.seen:
        unmeasured = ", ".join(
            f"{count:,} by {name.removeprefix('unmeasured ')}"
            for name, count in total.stopped.items()
            if name.startswith("unmeasured")
        )
        raise AccountingError(
            f"{total.quarantined:,} of {total.seen:,} documents could not be measured: {unmeasured}.",
            "Check these documents, switch the rules off, or raise filter.max_quarantined_share.",
        )
    for source, count in sorted(total.sources.items()):
        lost = 1 - total.kept_sources[source] / count
        if lost > config.max_removed_share_per_source:
            raise AccountingError(
                f"The filter removes {lost:.1%} of {source}, but filter.max_removed_share_per_source is "
                f"{config.max_removed_share_per_source:.1%}.",
                "Loosen the rules, leave the source out, or raise that share.",
            )


def _funnel(total: Tally, order: Iterable[str]) -> list[dict[str, Any]]:
    documents, size = total.seen, total.seen_bytes
    rows = [{"rule": "all documents", "removed": "", "documents left": documents, "tokens left": size // BYTES_A_TOKEN}]
    for name in order:
        if total.stopped[name]:
            documents -= total.stopped[name]
            size -= total.stopped_bytes[name]
            rows.append(
                {
                    "rule": name,
                    "removed": total.stopped[name],
                    "documents left": documents,
                    "tokens left": size // BYTES_A_TOKEN,
                }
            )
    return rows


def _examples(config: FilterConfig, total: Tally, order: Iterable[str]) -> list[dict[str, str]]:
    examples = [(name, example) for name in order for example in total.examples.get(name, [])]
    texts = redact(config, [example.text for _, example in examples])
    excerpts = [" ".join(text[: 2 * EXCERPT].split())[:EXCERPT] for text in texts]
    return [
        {
            "rule": name,
            "document": example.id[:12],
            "source": example.source,
            "value": "" if example.value is None else f"{example.value:.4g}",
            "begins": f"`{excerpt.replace('`', ' ')}`",
        }
        for (name, example), excerpt in zip(examples, excerpts, strict=True)
    ]


def _counts(column: pa.Array) -> dict[str, int]:
    counted = pc.value_counts(column)
    return dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))
