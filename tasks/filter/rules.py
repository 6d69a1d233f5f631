"""What a family's rules are made of: tests of columns of signals, so that the ledger can say what was compared.

A rule works on a row group at a time: a new threshold costs seconds. A document whose signal is null, because it could
not be measured, is quarantined by the first rule that needs the signal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
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
    """A rule's result per document: whether it fails, whether its signal is missing, and the measured value, which is
    NaN where the rule is not for the document."""

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
    """A document passes when its signal is at least (`min`) or at most (`max`) the threshold."""

    name: str
    signal: str
    direction: str
    threshold: float
    turn: Turn = Turn.USUAL

    def test(self, signals: pa.RecordBatch) -> Tested:
        """See `Rule`."""
        column = signals[self.signal]
        unknown = column.is_null().to_numpy(zero_copy_only=False)
        values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        fails = values < self.threshold if self.direction == "min" else values > self.threshold
        return Tested(fails & ~unknown, unknown, values)

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """See `Rule`."""
        return no_details(signals)


@dataclass(frozen=True)
class NamedBound(Bound):
    """A bound whose ledger entries also say what stands in the column `remark`: who scored, why nobody could, which
    document is alike."""

    remark: str = ""

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """See `Rule`."""
        return signals[self.remark]


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


@dataclass(frozen=True)
class Where:
    """A rule for some of the documents: those that `chosen` marks. The others pass, measured or not."""

    rule: Rule
    chosen: Callable[[pa.RecordBatch], Bool]

    @property
    def name(self) -> str:
        """See `Rule`."""
        return self.rule.name

    @property
    def threshold(self) -> float | None:
        """See `Rule`."""
        return self.rule.threshold

    @property
    def turn(self) -> Turn:
        """See `Rule`."""
        return self.rule.turn

    def test(self, signals: pa.RecordBatch) -> Tested:
        """See `Rule`."""
        tested, chosen = self.rule.test(signals), self.chosen(signals)
        return Tested(tested.fails & chosen, tested.unknown & chosen, np.where(chosen, tested.values, np.nan))

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """See `Rule`."""
        return self.rule.details(signals)


def with_threshold(rule: Rule, threshold: float) -> Rule:
    """The rule with another threshold."""
    if isinstance(rule, Where):
        return replace(rule, rule=with_threshold(rule.rule, threshold))
    return replace(rule, threshold=threshold)  # type: ignore[type-var]


def belongs(rule: Rule, groups: Sequence[str]) -> bool:
    """Whether a rule is one of `groups`: names of rules (`fineweb.max_short_lines`) or of all of a section (`c4`)."""
    return any(rule.name == group or rule.name.startswith(f"{group}.") for group in groups)


def no_details(signals: pa.RecordBatch) -> pa.Array:
    """An empty string per document."""
    return pa.repeat(pa.scalar(""), signals.num_rows)


Thresholds = Mapping[str, float | None]


def bounds(
    group: str,
    config: StageConfig | None,
    prefix: str,
    languages: Mapping[str, Thresholds] | None = None,
    signals: Mapping[tuple[str, str], str] | None = None,
) -> Iterator[Rule]:
    """The fields `min_SIGNAL` and `max_SIGNAL` of a group of thresholds as rules; a null field is none.

    `languages` have thresholds of their own, in place of the group's: a rule GROUP.FIELD.LANGUAGE each. `signals` are
    those of a field that a language has of its own, by (field, language).
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
            yield Where(rule, functools.partial(written_in, apart, False)) if apart else rule
        for language in apart:
            if (other := own[language][name]) is not None:
                measured = (signals or {}).get((name, language), prefix + signal)
                rule = Bound(f"{group}.{name}.{language}", measured, direction, float(other))
                yield Where(rule, functools.partial(written_in, (language,), True))


def written_in(languages: Sequence[str], inside: bool, signals: pa.RecordBatch) -> Bool:
    """Which documents are in one of these languages, or in none of them."""
    found: Bool = pc.is_in(signals["language"], pa.array(languages, pa.string())).to_numpy(zero_copy_only=False)
    return found if inside else ~found


def reason(rule: Rule, unmeasured: bool) -> str:
    """The ledger's reason: the rule's name; for a document that could not be measured, what was missing."""
    return f"unmeasured {rule.name}" if unmeasured else rule.name
