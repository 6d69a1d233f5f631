"""The rules that families are built from: tests of signal columns, so that the ledger can say what was compared.

A rule works on a row group at a time, so a new threshold costs seconds. A null signal could not be measured: the first
rule that needs it quarantines the document.
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
    """When to try a rule or change a text, relative to other families. Ties follow the order of the families."""

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
    NaN if it is missing or the rule doesn't apply to the document."""

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
        """The threshold in the ledger, or None for a rule without a number."""

    @property
    def turn(self) -> Turn:
        """When to try it, relative to the others."""

    def test(self, signals: pa.RecordBatch) -> Tested:
        """Test every document of a batch."""

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """A remark for the ledger, beside value and threshold: a string per document."""


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
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        fails = values < self.threshold if self.direction == "min" else values > self.threshold
        return Tested(fails, unknown, values)

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """See `Rule`."""
        return no_details(signals)


@dataclass(frozen=True)
class NamedBound(Bound):
    """A bound whose ledger entries add the column `remark`, such as the model that scored, the reason for no score, or
    the similar document."""

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
        values = signals[self.score].to_numpy(zero_copy_only=False)
        return Tested(~inside & ~unknown, unknown, values)

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """The signal itself."""
        return signals[self.signal]


@dataclass(frozen=True)
class Where:
    """A rule for only those documents that `chosen` marks. The others pass, measured or not."""

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
    """Whether `groups` covers a rule: by its name (`fineweb.max_short_lines`) or its section's (`c4`)."""
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
    """The fields `min_SIGNAL` and `max_SIGNAL` of a group of thresholds as rules, except null fields.

    `languages` are thresholds by language, which replace the group's: each is a rule GROUP.FIELD.LANGUAGE. `signals`
    names the signal of a field that a language measures separately, by (field, language).
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
    """Mark the documents in one of these languages or, unless `inside`, in none of them."""
    member: Bool = pc.is_in(signals["language"], pa.array(languages, pa.string())).to_numpy(zero_copy_only=False)
    return member if inside else ~member


def reason(rule: Rule, unmeasured: bool) -> str:
    """The ledger's reason: the rule's name, after "unmeasured" for a document whose signal is missing."""
    return f"unmeasured {rule.name}" if unmeasured else rule.name
