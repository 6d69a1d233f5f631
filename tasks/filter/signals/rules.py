"""The bounds on the columns of a profile's own signal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from tasks.filter.rules import DIRECTIONS, NamedBound, Rule, Section
from tasks.filter.signals.config import NAME, SignalConfig


class SignalRules(Section):
    """Your own signal, and the bounds that remove documents."""

    measure: SignalConfig = Field(description="the function or classifier that measures it")
    min: dict[str, float] = Field({}, description="minimum value to keep, by column, where true counts as 1")
    max: dict[str, float] = Field({}, description="maximum value to keep, by column")

    @model_validator(mode="after")
    def _bounds_are_of_columns(self) -> Self:
        known = self.measure.columns
        unknown = sorted({*self.min, *self.max} - set(known))
        if unknown:
            raise ValueError(f"unknown column {', '.join(unknown)}: choose from {', '.join(known)}")
        crossed = [name for name in self.min if name in self.max and self.min[name] > self.max[name]]
        if crossed:
            raise ValueError(f"min.{crossed[0]} is above max.{crossed[0]}: no document can pass")
        return self


def _check_names(signals: dict[str, SignalRules]) -> dict[str, SignalRules]:
    wrong = [name for name in signals if not NAME.fullmatch(name)]
    if wrong:
        raise ValueError(f"a signal is named {wrong[0]!r}: write names in lower-case letters, digits and _")
    return signals


NamedSignals = Annotated[dict[str, SignalRules], AfterValidator(_check_names)]


def signal_rules(name: str, rules: SignalRules) -> Iterator[Rule]:
    """The rules of the signal `name`."""
    for direction in DIRECTIONS:
        for column, threshold in sorted(getattr(rules, direction).items()):
            yield NamedBound(
                f"{name}.{direction}_{column}",
                f"{name}.{column}",
                direction,
                threshold,
                remark=f"{name}.{rules.measure.remark}",
            )
