"""The documents nearest to a rule's threshold, among those that all other rules keep, and the verdicts with another
threshold.

Signals are read first, for all documents. Texts are read only for the few that are shown, and then searched for
personal data.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import ConfigError
from storage.shards.arrays import Bool, Float64, Int64
from storage.shards.documents import read_batches
from tasks.filter.config import FilterConfig
from tasks.filter.decide import decide
from tasks.filter.families import first_rules, passes_first_rules, redact, rules
from tasks.filter.rules import Rule, with_threshold
from tasks.filter.side_files import Measured

COLUMNS = ("id", "source")
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


class Nearby(NamedTuple):
    """A document near the threshold: its value, and its text without personal data."""

    id: str
    source: str
    value: float
    text: str


class _Place(NamedTuple):
    """The location of a document near the threshold."""

    distance: float
    id: str
    source: str
    value: float
    shard: int
    row: int

    @property
    def order(self) -> tuple[float, str]:
        """The sort key: nearest first, and the smallest ID on a tie."""
        return self.distance, self.id


@dataclass
class Inspection:
    """The result of an inspection. `before` and `after` count the documents kept, by source, with the rule's own
    threshold and with the requested one. `unasked` counts newly kept documents that the last rules have not tested."""

    rule: Rule
    documents: Counter[str] = field(default_factory=Counter)
    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)
    newly_removed: Counter[str] = field(default_factory=Counter)
    newly_kept: Counter[str] = field(default_factory=Counter)
    unmeasured: int = 0
    unasked: int = 0
    values: defaultdict[str, list[Float64]] = field(default_factory=lambda: defaultdict(list))
    passing: list[Nearby] = field(default_factory=list)
    failing: list[Nearby] = field(default_factory=list)

    def quantiles(self) -> dict[str, list[float]]:
        """The QUANTILES of the signal, by source, over the documents that have it."""
        joined = {source: np.concatenate(parts) for source, parts in sorted(self.values.items())}
        return {source: np.quantile(values, QUANTILES).tolist() for source, values in joined.items() if len(values)}


def named_rule(tests: Sequence[Rule], name: str) -> int:
    """The index of a rule. Raises ConfigError for an unknown rule, with similar names in the remedy."""
    names = [test.name for test in tests]
    if name not in names:
        near = difflib.get_close_matches(name, names, 3) or [other for other in names if name in other][:8]
        hint = f"Did you mean {' or '.join(near)}?" if near else "`gristmill filter rules` lists them."
        raise ConfigError(f"The profile lacks a rule {name}.", hint)
    return names.index(name)


def inspect_rule(
    config: FilterConfig,
    name: str,
    shards: Sequence[Measured],
    *,
    threshold: float | None,
    count: int,
    source: str = "",
) -> Inspection:
    """At most `count` documents on each side of the threshold (None for the rule's own), and what it would change.

    Shows only documents that every other rule keeps, and only those of `source` if it is given. The counts cover all
    documents. Raises ConfigError for an unknown rule, or a rule without a threshold to move.
    """
    tests, first = rules(config), len(first_rules(config))
    at = named_rule(tests, name)
    rule = tests[at]
    if threshold is not None and rule.threshold is None:
        raise ConfigError(f"{name} doesn't compare numbers, so there is no threshold to try.", "Leave --threshold out.")
    tried = rule if threshold is None else with_threshold(rule, threshold)
    others, moved = [*tests[:at], *tests[at + 1 :]], [*tests[:at], tried, *tests[at + 1 :]]
    result = Inspection(tried)
    sides: tuple[list[_Place], list[_Place]] = ([], [])
    for number, shard in enumerate(shards):
        for start, batch, signals in shard.batches(COLUMNS):
            tested = tried.test(signals)
            before, after = decide(signals, tests).kept, decide(signals, moved).kept
            _count(result, batch["source"], before, after)
            result.unmeasured += int(tested.unknown.sum())
            if len(tests) > first:
                result.unasked += int((after & ~before & ~passes_first_rules(signals)).sum())
            valued = ~tested.unknown & ~np.isnan(tested.values)
            _collect(result, batch["source"], tested.values, valued)
            decisive = decide(signals, others).kept & valued
            if source:
                decisive &= pc.equal(batch["source"], source).to_numpy(zero_copy_only=False)
            distance = np.abs(tested.values - (tried.threshold or 0.0))
            for side, mask in zip(sides, (~tested.fails, tested.fails), strict=True):
                rows = np.flatnonzero(decisive & mask)
                side += _nearest(rows, count, distance, tested.values, number, start, batch)
                # Copies of a text have one ID, and are shown once
                distinct = {place.id: place for place in sorted(side, key=lambda place: place.order)}
                side[:] = list(distinct.values())[:count]
    if source and source not in result.documents:
        raise ConfigError(f"No document is from {source}.", f"The sources are {', '.join(sorted(result.documents))}.")
    result.passing, result.failing = (_read(side, shards, config) for side in sides)
    return result


def _count(result: Inspection, sources: pa.Array, before: Bool, after: Bool) -> None:
    for counter, mask in (
        (result.documents, None),
        (result.before, before),
        (result.after, after),
        (result.newly_removed, before & ~after),
        (result.newly_kept, after & ~before),
    ):
        chosen = sources if mask is None else sources.filter(pa.array(mask))
        counter.update({row["values"]: row["counts"] for row in chosen.value_counts().to_pylist()})


def _collect(result: Inspection, sources: pa.Array, values: Float64, valued: Bool) -> None:
    for name in pc.unique(sources).to_pylist():
        mine = pc.equal(sources, name).to_numpy(zero_copy_only=False)
        result.values[name].append(values[mine & valued])


def _nearest(
    rows: Int64, count: int, distance: Float64, values: Float64, shard: int, start: int, batch: pa.RecordBatch
) -> list[_Place]:
    """The `count` nearest of some rows of a batch, and all others that are as near as the last of them."""
    last = np.sort(distance[rows])[:count].max(initial=-1)
    return [
        _Place(
            float(distance[row]),
            batch["id"][row].as_py(),
            batch["source"][row].as_py(),
            float(values[row]),
            shard,
            start + row,
        )
        for row in rows[distance[rows] <= last].tolist()
    ]


def _read(side: Sequence[_Place], shards: Sequence[Measured], config: FilterConfig) -> list[Nearby]:
    texts = redact(config, [_text(shards[place.shard].documents, place.row) for place in side])
    return [Nearby(place.id, place.source, place.value, text) for place, text in zip(side, texts, strict=True)]


def _text(path: Path, row: int) -> str:
    for start, batch in read_batches(path, ["text"], [row]):
        if start <= row < start + batch.num_rows:
            text: str = batch["text"][row - start].as_py()
            return text
    raise AssertionError("the row belongs to this shard")
