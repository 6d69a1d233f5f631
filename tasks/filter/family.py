"""A filter family: how its signals are measured, which rules judge them, and what else it does.

A family is a folder with a `family.py` that defines FAMILY, its fields in `FilterConfig`, and a row in `families.py`.
The rest of the filter works only on these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from storage.artifact import Artifact
from storage.shards.arrays import Bool
from tasks.filter.rules import Rule, Turn
from tasks.stage.config import StageConfig
from tasks.stage.output import Output
from tasks.stage.protocol import ObtainableStage

PASSED = "passed"  # the signal that marks the documents that pass the rules of the families measured first


class Change(NamedTuple):
    """A changed text and its ledger entry: the reason, the number of places, and a remark."""

    text: str
    reason: str
    places: int
    detail: str


class Spared(NamedTuple):
    """Rules, or sections of rules, that don't apply to the documents that `documents` marks."""

    groups: tuple[str, ...]
    documents: Callable[[pa.RecordBatch], Bool]


class Mender(Protocol):
    """Changes the text or metadata of kept documents. One that relies on measured offsets must take its turn first."""

    @property
    def turn(self) -> Turn:
        """When to apply it, relative to the others."""

    @property
    def column(self) -> str:
        """The column it changes: `text` or `metadata`."""

    def touches(self, signals: pa.RecordBatch) -> Bool:
        """Mark the documents that it changes."""

    def mend(self, text: str, signals: pa.RecordBatch, row: int) -> Change:
        """Change the value of its column in this row."""


@dataclass(frozen=True)
class Family:
    """A family of signals. Functions with `...` get the config's sections named in `fields`, in that order.

    `measured_by` returns the config of `signals`, or None if the family is switched off. The config of `model` is the
    field `model` of that config. `signals` reads the documents, then the benchmarks if `reads_benchmarks`, the model if
    any, and with `can_be_last` the artifact of `passed`, which is None if all documents are measured.
    """

    fields: tuple[str, ...]
    signals: ObtainableStage
    measured_by: Callable[..., Any]
    rules: Callable[..., Iterable[Rule]]
    model: ObtainableStage | None = None
    reads_benchmarks: bool = False
    # Whether it can be measured only for the documents that pass all other rules: `filter.measured_last`
    can_be_last: bool = False
    # Digests of what deciding reads outside the store, for the key of `filter`
    fingerprints: Callable[..., Mapping[str, str]] | None = None
    # How kept texts change, or None. Called in the process that changes them
    mender: Callable[..., Mender | None] | None = None
    # Rules that don't apply to some documents, because this family's rules judge these documents better
    spares: Callable[..., Spared | None] | None = None
    # (sections…, texts) → the texts as people may see them in reports
    redact: Callable[..., list[str]] | None = None
    # (sections…, the artifact of signals, out): adds the family's own files to the filter's artifact
    finish: Callable[..., None] | None = None
    # (sections…, runtime): raises a GristmillError if this machine lacks what measuring needs
    check_here: Callable[..., None] | None = None

    @property
    def name(self) -> str:
        """The name of the family and of its signals."""
        return self.signals.name

    def sections(self, config: StageConfig) -> tuple[Any, ...]:
        """The family's own sections of the filter's config."""
        return tuple(getattr(config, field) for field in self.fields)

    def sources(self, config: StageConfig) -> dict[str, str]:
        """Digests of what measuring reads outside the store. They enter the filter's own key too: otherwise it would
        not notice that its signals have changed. Raises SourceError for a source that is missing."""
        measuring = self.measured_by(*self.sections(config))
        if measuring is None:
            return {}
        stages = [(self.signals, measuring), *([(self.model, measuring.model)] if self.model else [])]
        return {
            name: digest
            for one, its_config in stages
            if one.sources
            for name, digest in one.sources(its_config).items()
        }

    def parts(self, config: StageConfig) -> dict[str, StageConfig]:
        """The configs of the artifacts that `measure` obtains, by name."""
        measuring = self.measured_by(*self.sections(config))
        if measuring is None:
            return {}
        return {self.name: measuring, **({self.model.name: measuring.model} if self.model else {})}

    def measure(
        self, config: StageConfig, documents: Artifact, benchmarks: Artifact, passed: Artifact | None, out: Output
    ) -> tuple[Artifact | None, Artifact | None]:
        """Obtain the artifacts of the model and of the signals, each None if the config asks for none."""
        measuring = self.measured_by(*self.sections(config))
        if measuring is None:
            return None, None
        model = out.obtain(self.model, measuring.model, documents) if self.model else None
        inputs = [
            documents,
            *([benchmarks] if self.reads_benchmarks else []),
            *([model] if model else []),
            *([passed] if self.can_be_last else []),
        ]
        return model, out.obtain(self.signals, measuring, *inputs)


def column_of(family: str, column: str) -> str:
    """The name of a column in the table of all families: a profile's own signal puts its name before it."""
    return f"{family}.{column}" if "." in family else column


def measuring_half(section: Any) -> Any:
    """The config of a section's signals, or None if the section is switched off."""
    return None if section is None else section.measure
