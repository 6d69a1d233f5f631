"""The documents nearest to a rule's threshold, of those on which no other rule decides; and the verdicts under another
threshold.

Signals are read first, for all documents; texts only for the few that are shown, in which personal data is looked for
then.
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
from tasks.filter.families import first_rules, passes_the_first, redact, rules
from tasks.filter.rules import Rule, with_threshold
from tasks.filter.side_files import Measured

COLUMNS = ("id", "source")
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


class Shown(NamedTuple):
    """A document near the threshold: its value, and its text without personal data."""

    id: str
    source: str
    value: float
    text: str


class _Place(NamedTuple):
    """Where a document near the threshold stands."""

    distance: float
    id: str
    source: str
    value: float
    shard: int
    row: int

    @property
    def order(self) -> tuple[float, str]:
        """Nearest first; of equally near ones the smallest ID."""
        return self.distance, self.id


@dataclass
class Looked:
    """What looking found. `before` and `after` are documents kept by source, under the rule's own threshold and under
    the one that was asked for. `unasked` of those newly kept were not met by the rules that are tried last."""

    rule: Rule
    documents: Counter[str] = field(default_factory=Counter)
    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)
    newly_removed: Counter[str] = field(default_factory=Counter)
    newly_kept: Counter[str] = field(default_factory=Counter)
    unmeasured: int = 0
    unasked: int = 0
    values: defaultdict[str, list[Float64]] = field(default_factory=lambda: defaultdict(list))
    passing: list[Shown] = field(default_factory=list)
    failing: list[Shown] = field(default_factory=list)

    def quantiles(self) -> dict[str, list[float]]:
        """The signal's QUANTILES over the documents of each source that have one."""
        joined = {source: np.concatenate(parts) for source, parts in sorted(self.values.items())}
        return {source: np.quantile(values, QUANTILES).tolist() for source, values in joined.items() if len(values)}


def named_rule(tests: Sequence[Rule], name: str) -> int:
    """The place of a rule. Raises ConfigError for one that there is not, naming those that come near."""
    names = [test.name for test in tests]
    if name not in names:
        near = difflib.get_close_matches(name, names, 3) or [other for other in names if name in other][:8]
        hint = f"Did you mean {' or '.join(near)}?" if near else "`gristmill filter rules` lists them."
        raise ConfigError(f"The profile has no rule {name}.", hint)
    return names.index(name)


def look(
    config: FilterConfig,
    name: str,
    shards: Sequence[Measured],
    *,
    threshold: float | None,
    count: int,
    source: str = "",
) -> Looked:
    """At most `count` documents on each side of the threshold (the rule's own where None), and what it would change.

    Only documents that every other rule keeps are shown, of one `source` if it is named; the counts are of all. Raises
    ConfigError for a rule that there is not, or that has no threshold to move.
    """
    tests, first = rules(config), len(first_rules(config))
    at = named_rule(tests, name)
    rule = tests[at]
    if threshold is not None and rule.threshold is None:
        raise ConfigError(f"{name} compares no number, so it has no threshold to try.", "Leave --threshold out.")
    asked = rule if threshold is None else with_threshold(rule, threshold)
    others, moved = [*tests[:at], *tests[at + 1 :]], [*tests[:at], asked, *tests[at + 1 :]]
    found = Looked(asked)
    sides: tuple[list[_Place], list[_Place]] = ([], [])
    for number, shard in enumerate(shards):
        for start, batch, signals in shard.batches(COLUMNS):
            tested = asked.test(signals)
            before, after = decide(signals, tests).kept, decide(signals, moved).kept
            _count(found, batch["source"], before, after)
            found.unmeasured += int(tested.unknown.sum())
            if len(tests) > first:
                found.unasked += int((after & ~before & ~passes_the_first(signals)).sum())
            valued = ~tested.unknown & ~np.isnan(tested.values)
            _collect(found, batch["source"], tested.values, valued)
            alone = decide(signals, others).kept & valued
            if source:
                alone &= pc.equal(batch["source"], source).to_numpy(zero_copy_only=False)
            distance = np.abs(tested.values - (asked.threshold or 0.0))
            for side, mask in zip(sides, (~tested.fails, tested.fails), strict=True):
                rows = np.flatnonzero(alone & mask)
                side += _nearest(rows, count, distance, tested.values, number, start, batch)
                # Copies of a text have one ID, and are shown once
                distinct = {place.id: place for place in sorted(side, key=lambda place: place.order)}
                side[:] = list(distinct.values())[:count]
    if source and source not in found.documents:
        raise ConfigError(f"No document is of {source}.", f"The sources are {', '.join(sorted(found.documents))}.")
    found.passing, found.failing = (_read(side, shards, config) for side in sides)
    return found


def _count(found: Looked, sources: pa.Array, before: Bool, after: Bool) -> None:
    for counter, mask in (
        (found.documents, None),
        (found.before, before),
        (found.after, after),
        (found.newly_removed, before & ~after),
        (found.newly_kept, after & ~before),
    ):
        chosen = sources if mask is None else sources.filter(pa.array(mask))
        counter.update({row["values"]: row["counts"] for row in chosen.value_counts().to_pylist()})


def _collect(found: Looked, sources: pa.Array, values: Float64, valued: Bool) -> None:
    for name in pc.unique(sources).to_pylist():
        mine = pc.equal(sources, name).to_numpy(zero_copy_only=False)
        found.values[name].append(values[mine & valued])


def _nearest(
    rows: Int64, count: int, distance: Float64, values: Float64, shard: int, start: int, batch: pa.RecordBatch
) -> list[_Place]:
    """The `count` nearest of some rows of a batch, and all that are as near as the last of them."""
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


def _read(side: Sequence[_Place], shards: Sequence[Measured], config: FilterConfig) -> list[Shown]:
    texts = redact(config, [_text(shards[place.shard].documents, place.row) for place in side])
    return [Shown(place.id, place.source, place.value, text) for place, text in zip(side, texts, strict=True)]


def _text(path: Path, row: int) -> str:
    for start, batch in read_batches(path, ["text"], [row]):
        if start <= row < start + batch.num_rows:
            text: str = batch["text"][row - start].as_py()
            return text
    raise AssertionError("the row is of this shard")
