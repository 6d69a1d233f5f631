"""What a family's rules are made of: tests of columns of signals, so that the ledger can say what was compared.

A rule works on a row group at a time: a new threshold costs seconds. A document whose signal is null, because it could
not be measured, is quarantined by the first rule that needs the signal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from storage.shards.arrays import Bool, Float64
from tasks.stage.config import StageConfig

DIRECTIONS = ("min", "max")


class Turn(IntEnum):
    """When a rule is tried, or a text changed, relative to those of other families; ties follow the families' order."""

    FIRST = 0
    USUAL = 1
    LAST = 2


class Section(StageConfig):
    """A family's section of the filter's config: thresholds, and `measure`, the config of its signals."""

    def named_sources(self) -> dict[str, list[str]]:
        """The sources of documents that this section names, by the path of the field."""
        return {}


class Tested(NamedTuple):
    """A rule's result per document: whether it fails, whether its signal is missing, and the measured value."""

    fails: Bool
    unknown: Bool
    values: Float64


class Rule(Protocol):
    """One test of every document. `name` is the reason in the ledger."""

    @property
    def name(self) -> str:
        """The reason in the ledger."""

    @property
    def threshold(self) -> float | None:
        """The threshold in the ledger; None for a rule without a number."""

    @property
    def turn(self) -> Turn:
        """When it is tried."""

    def test(self, signals: pa.RecordBatch) -> Tested:
        """Test every document of a batch."""

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """What the ledger says in addition to value and threshold: a string per document."""


@dataclass(frozen=True)
class Bound:
    """A document passes when its signal is at least (`min`) or at most (`max`) the threshold.

    With `languages` the rule is about documents in these alone, or, with `others`, about all but those.
    """

    name: str
    signal: str
    direction: str
    threshold: float
    turn: Turn = Turn.USUAL
    languages: tuple[str, ...] = ()
    others: bool = False

    def test(self, signals: pa.RecordBatch) -> Tested:
        """See `Rule`."""
        column = signals[self.signal]
        unknown = column.is_null().to_numpy(zero_copy_only=False)
        values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        fails = values < self.threshold if self.direction == "min" else values > self.threshold
        if self.languages:
            inside = pc.is_in(signals["language"], pa.array(self.languages, pa.string())).to_numpy(zero_copy_only=False)
            about = inside ^ self.others
            return Tested(fails & ~unknown & about, unknown & about, values)
        return Tested(fails & ~unknown, unknown, values)

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """See `Rule`."""
        return no_details(signals)


@dataclass(frozen=True)
class Member:
    """A document passes when its signal is one of `allowed`. The ledger's value is that of the signal `score`."""

    name: str
    signal: str
    allowed: tuple[str, ...]
    score: str
    threshold: float | None = None
    turn: Turn = Turn.USUAL

    def test(self, signals: pa.RecordBatch) -> Tested:
        """See `Rule`."""
        unknown = signals[self.signal].is_null().to_numpy(zero_copy_only=False)
        inside = pc.is_in(signals[self.signal], pa.array(self.allowed, pa.string())).to_numpy(zero_copy_only=False)
        values = pc.fill_null(signals[self.score], 0.0).to_numpy(zero_copy_only=False)
        return Tested(~inside & ~unknown, unknown, values)

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """The signal itself."""
        return signals[self.signal]


def no_details(signals: pa.RecordBatch) -> pa.Array:
    """An empty string per document."""
    return pa.repeat(pa.scalar(""), signals.num_rows)


Thresholds = Mapping[str, float | None]


def bounds(
    group: str, config: StageConfig | None, prefix: str, languages: Mapping[str, Thresholds] | None = None
) -> Iterator[Rule]:
    """The fields `min_SIGNAL` and `max_SIGNAL` of a group of thresholds as rules; a null field is none.

    `languages` have thresholds of their own, in place of the group's: a rule GROUP.FIELD.LANGUAGE each.
    """
    own = languages or {}
    for name in type(config).model_fields if config is not None else ():
        direction, _, signal = name.partition("_")
        if direction not in DIRECTIONS:
            continue
        threshold = getattr(config, name)
        apart = tuple(sorted(language for language, thresholds in own.items() if name in thresholds))
        if threshold is not None:
            rule = Bound(f"{group}.{name}", prefix + signal, direction, float(threshold))
            yield replace(rule, languages=apart, others=True) if apart else rule
        for language in apart:
            if (other := own[language][name]) is not None:
                named = f"{group}.{name}.{language}"
                yield Bound(named, prefix + signal, direction, float(other), languages=(language,))


def reason(rule: Rule, unmeasured: bool) -> str:
    """The ledger's reason: the rule's name; for a document that could not be measured, what was missing."""
    return f"unmeasured {rule.name}" if unmeasured else rule.name
