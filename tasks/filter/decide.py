"""The deciding half: rules over signals, tried in order; the first that fails is the reason.

A rule is a name, a signal, a threshold and a direction, so that the ledger can say what was measured against what.
Rules work on columns, a row group at a time: a new threshold costs seconds. A document whose signal is null, because it
could not be measured, is quarantined when a rule asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage.documents import LEDGER_SCHEMA
from tasks.filter.config import FilterConfig
from tasks.stage.config import StageConfig

Mask = npt.NDArray[np.bool_]
KEPT = -1
DIRECTIONS = ("min", "max")


class Tested(NamedTuple):
    """What a rule says of each document: whether it fails, whether it can't be told, and what was measured."""

    fails: Mask
    unknown: Mask
    values: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Bound:
    """A document passes when its signal is at least (`min`) or at most (`max`) the threshold."""

    name: str
    signal: str
    direction: str
    threshold: float

    def test(self, signals: pa.RecordBatch) -> Tested:
        """Try the rule on every document of a batch."""
        column = signals[self.signal]
        unknown = column.is_null().to_numpy(zero_copy_only=False)
        values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        fails = values < self.threshold if self.direction == "min" else values > self.threshold
        return Tested(fails & ~unknown, unknown, values)

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """What the ledger says beside value and threshold."""
        return pa.repeat(pa.scalar(""), signals.num_rows)


@dataclass(frozen=True)
class Member:
    """A document passes when its signal is one of `allowed`. The ledger's value is that of the signal `score`."""

    name: str
    signal: str
    allowed: tuple[str, ...]
    score: str
    threshold: float | None = None

    def test(self, signals: pa.RecordBatch) -> Tested:
        """Try the rule on every document of a batch."""
        unknown = signals[self.signal].is_null().to_numpy(zero_copy_only=False)
        inside = pc.is_in(signals[self.signal], pa.array(self.allowed, pa.string())).to_numpy(zero_copy_only=False)
        values = pc.fill_null(signals[self.score], 0.0).to_numpy(zero_copy_only=False)
        return Tested(~inside & ~unknown, unknown, values)

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """The signal itself."""
        return signals[self.signal]


@dataclass(frozen=True)
class Finding:
    """A document passes when it holds no finding of personal data of this kind that is sure enough."""

    name: str
    entity: str
    threshold: float

    def test(self, signals: pa.RecordBatch) -> Tested:
        """Try the rule on every document of a batch."""
        findings = signals["pii"]
        rows = pc.list_parent_indices(findings).to_numpy()
        parts = pc.list_flatten(findings)
        scores = parts.field("score").to_numpy(zero_copy_only=False)
        found = pc.equal(parts.field("entity"), self.entity).to_numpy(zero_copy_only=False)
        values = np.zeros(signals.num_rows)
        np.maximum.at(values, rows[found], scores[found])
        fails = np.zeros(signals.num_rows, np.bool_)
        fails[rows[found & (scores >= self.threshold)]] = True
        return Tested(fails, np.zeros(signals.num_rows, np.bool_), values)

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """What the ledger says beside value and threshold."""
        return pa.repeat(pa.scalar(""), signals.num_rows)


Rule = Bound | Member | Finding


class Decisions(NamedTuple):
    """For each document the number of the first rule that stops it, or KEPT; whether because it could not be measured;
    and the value that the rule saw."""

    rule: npt.NDArray[np.int64]
    unmeasured: Mask
    values: npt.NDArray[np.float64]

    @property
    def kept(self) -> Mask:
        """Which documents pass every rule."""
        return self.rule == KEPT

    def stopped(self) -> Iterator[tuple[int, bool, npt.NDArray[np.int64]]]:
        """The documents that are not kept, together by what stops them: (rule, whether unmeasured, their rows)."""
        for number in np.unique(self.rule[~self.kept]).tolist():
            for unmeasured in (False, True):
                rows = np.flatnonzero((self.rule == number) & (self.unmeasured == unmeasured))
                if len(rows):
                    yield number, unmeasured, rows


def rules(config: FilterConfig) -> list[Rule]:
    """Every rule of the config, in the order in which they are tried."""
    found: list[Rule] = [Bound("empty", "nonblank_lines", "min", 1)]
    found.append(Member("language", "language", tuple(config.language.allowed), "language_score"))
    found += bounds("language", config.language, "language_")
    for group in ("gopher_quality", "gopher_repetition", "c4", "fineweb"):
        found += bounds(group, getattr(config, group), "")
    for group in ("quality", "perplexity", "toxicity", "pii", "contamination"):
        found += bounds(group, getattr(config, group), f"{group}_")
    if config.perplexity is not None:
        buckets = tuple(config.perplexity.buckets)
        found.append(Member("perplexity.buckets", "perplexity_bucket", buckets, "perplexity"))
    found += [Finding(f"pii.{entity.lower()}", entity, config.pii.confidence) for entity in config.pii.kinds("drop")]
    return found


def bounds(group: str, config: StageConfig | None, prefix: str) -> Iterable[Bound]:
    """The fields `min_SIGNAL` and `max_SIGNAL` of a group of thresholds; one that is null is no rule."""
    for name in type(config).model_fields if config is not None else ():
        direction, _, signal = name.partition("_")
        threshold = getattr(config, name)
        if direction in DIRECTIONS and threshold is not None:
            yield Bound(f"{group}.{name}", prefix + signal, direction, float(threshold))


def decide(signals: pa.RecordBatch, tests: Sequence[Rule]) -> Decisions:
    """Try every rule on a batch of documents, given its signals."""
    rule = np.full(signals.num_rows, KEPT)
    unmeasured = np.zeros(signals.num_rows, np.bool_)
    values = np.zeros(signals.num_rows)
    for number, test in enumerate(tests):
        tested = test.test(signals)
        stopped = (rule == KEPT) & (tested.fails | tested.unknown)
        rule[stopped] = number
        unmeasured[stopped] = tested.unknown[stopped]
        values[stopped] = tested.values[stopped]
    return Decisions(rule, unmeasured, values)


def ledger(
    documents: pa.RecordBatch, signals: pa.RecordBatch, decisions: Decisions, tests: Sequence[Rule]
) -> Iterable[pa.RecordBatch]:
    """The ledger's rows for the documents that are not kept, rule by rule."""
    for number, unmeasured, rows in decisions.stopped():
        test, taken, count = tests[number], pa.array(rows), len(rows)
        columns: dict[str, Any] = {
            "id": documents["id"].take(taken),
            "source": documents["source"].take(taken),
            "verdict": pa.repeat(pa.scalar("quarantined" if unmeasured else "removed"), count),
            "reason": pa.repeat(pa.scalar(reason(test, unmeasured)), count),
            "value": pa.nulls(count, pa.float64()) if unmeasured else pa.array(decisions.values[rows]),
            "threshold": pa.repeat(pa.scalar(test.threshold, pa.float64()), count),
            "detail": test.details(signals).take(taken).fill_null(""),
        }
        yield pa.record_batch([columns[name] for name in LEDGER_SCHEMA.names], schema=LEDGER_SCHEMA)


def reason(test: Rule, unmeasured: bool) -> str:
    """The ledger's reason: the rule's name; for a document that could not be measured, what was missing."""
    return f"unmeasured {test.name}" if unmeasured else test.name
