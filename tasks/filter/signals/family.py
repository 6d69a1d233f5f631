"""Each signal of a profile as a filter family, named `signals.NAME` like its rules and its columns, with its bounds."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from storage.artifact import Artifact
from tasks.children.devices import check_device_here
from tasks.filter.classifier.source import fingerprints
from tasks.filter.family import Family
from tasks.filter.rules import DIRECTIONS, NamedBound, Rule, Section
from tasks.filter.signals.config import NAME, ClassifierSignalConfig, SignalConfig
from tasks.filter.signals.stage import signals, signals_model, sources
from tasks.stage.config import StageConfig
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime

FIELD = "signals"


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


@dataclass(frozen=True)
class NamedFamily(Family):
    """The family of one signal."""

    title: str = ""

    @property
    def name(self) -> str:
        """The family's name, with which the names of its rules begin."""
        return f"{FIELD}.{self.title}"

    def parts(self, config: StageConfig) -> dict[str, StageConfig]:
        """See the base."""
        measuring = self.measured_by(*self.sections(config))
        scorer = isinstance(measuring, ClassifierSignalConfig)
        return {self.name: measuring, **({f"signals_model.{self.title}": measuring.scorer()} if scorer else {})}

    def measure(
        self, config: StageConfig, documents: Artifact, benchmarks: Artifact, passed: Artifact | None, out: Output
    ) -> tuple[Artifact | None, Artifact | None]:
        """See the base."""
        measuring = self.measured_by(*self.sections(config))
        model = None
        if isinstance(measuring, ClassifierSignalConfig):
            model = out.obtain(signals_model, measuring.scorer(), documents, name=f"signals_model.{self.title}")
        return model, out.obtain(signals, measuring, documents, model, name=self.name)

    def sources(self, config: StageConfig) -> dict[str, str]:
        """See the base."""
        return sources_of(self.measured_by(*self.sections(config)))


def sources_of(measuring: SignalConfig) -> dict[str, str]:
    """Digests of everything outside the store that a signal depends on. Raises SourceError if something is missing."""
    return fingerprints(measuring) if isinstance(measuring, ClassifierSignalConfig) else sources(measuring)


def named_families(config: StageConfig) -> tuple[Family, ...]:
    """The families of the config's signals, in its order."""
    return tuple(_family(name) for name in getattr(config, FIELD))


def _family(name: str) -> Family:
    return NamedFamily(
        (FIELD,),
        signals,
        functools.partial(_measured_by, name),
        functools.partial(_rules, name),
        check_here=functools.partial(_check_here, name),
        title=name,
    )


def _measured_by(name: str, rules: Mapping[str, SignalRules]) -> SignalConfig:
    return rules[name].measure


def _rules(name: str, rules: Mapping[str, SignalRules]) -> Iterable[Rule]:
    return signal_rules(f"{FIELD}.{name}", rules[name])


def _check_here(name: str, rules: Mapping[str, SignalRules], runtime: Runtime) -> None:
    measuring = rules[name].measure
    sources_of(measuring)
    if isinstance(measuring, ClassifierSignalConfig):
        check_device_here(runtime)
