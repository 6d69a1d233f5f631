"""Each signal of a profile as a family of the filter: named `signals.NAME`, as its rules and its columns are."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage.artifact import Artifact
from tasks.filter.family import Family
from tasks.filter.rules import Rule
from tasks.filter.signals.config import SignalConfig
from tasks.filter.signals.rules import SignalRules, signal_rules
from tasks.filter.signals.stage import signals, sources
from tasks.stage.config import StageConfig
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime

FIELD = "signals"


@dataclass(frozen=True)
class NamedFamily(Family):
    """The family of one signal."""

    title: str = ""

    @property
    def name(self) -> str:
        """As its rules begin."""
        return f"{FIELD}.{self.title}"

    def measure(
        self, config: StageConfig, documents: Artifact, benchmarks: Artifact, out: Output
    ) -> tuple[Artifact | None, Artifact | None]:
        """See the base."""
        measuring = self.measured_by(*self.sections(config))
        return None, out.obtain(signals, measuring, documents, name=self.name)


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


def _measured_by(name: str, given: Mapping[str, SignalRules]) -> SignalConfig:
    return given[name].measure


def _rules(name: str, given: Mapping[str, SignalRules]) -> Iterable[Rule]:
    return signal_rules(f"{FIELD}.{name}", given[name])


def _check_here(name: str, given: Mapping[str, SignalRules], runtime: Runtime) -> None:
    sources(given[name].measure)
