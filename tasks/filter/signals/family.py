"""Each signal of a profile as a filter family, named `signals.NAME` like its rules and its columns."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage.artifact import Artifact
from tasks.children.devices import check_device_here
from tasks.filter.classifier.source import fingerprints
from tasks.filter.family import Family
from tasks.filter.rules import Rule
from tasks.filter.signals.config import ClassifierSignalConfig, SignalConfig
from tasks.filter.signals.rules import SignalRules, signal_rules
from tasks.filter.signals.stage import signals, signals_model, sources
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
