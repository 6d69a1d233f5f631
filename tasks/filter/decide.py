"""The deciding half: tries rules over signals in order. The first that fails is the reason in the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Bool, Float64, Int64
from storage.shards.documents import LEDGER_SCHEMA
from tasks.filter.rules import Rule, reason

KEPT = -1


class Decisions(NamedTuple):
    """For each document: the number of the first rule that stops it, or KEPT, whether it stops for lack of a signal,
    and the value that the rule compared."""

    rule: Int64
    unmeasured: Bool
    values: Float64

    @property
    def kept(self) -> Bool:
        """Mark the documents that pass every rule."""
        return self.rule == KEPT

    def stopped(self) -> Iterator[tuple[int, bool, Int64]]:
        """The documents that aren't kept, grouped by what stops them: (rule, whether unmeasured, rows)."""
        for number in np.unique(self.rule[~self.kept]).tolist():
            for unmeasured in (False, True):
                rows = np.flatnonzero((self.rule == number) & (self.unmeasured == unmeasured))
                if len(rows):
                    yield number, unmeasured, rows


def decide(signals: pa.RecordBatch, tests: Sequence[Rule]) -> Decisions:
    """Apply the rules to a batch of documents, given its signals."""
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
    """The ledger rows of the documents that aren't kept, rule by rule."""
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
