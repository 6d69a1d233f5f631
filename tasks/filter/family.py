"""What a filter family declares: how its signals are measured, which rules judge them, what else it does.

A family is a folder with a `family.py` that defines FAMILY, its fields in `FilterConfig`, and its row in `families.py`.
Everything else in the filter works on what is declared here.
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

PASSED = "passed"  # which documents pass the rules of the families that are measured first: their signal's name


class Change(NamedTuple):
    """A changed text and its ledger entry: the reason, the number of places, and a remark."""

    text: str
    reason: str
    places: int
    detail: str


class Spared(NamedTuple):
    """Rules, or sections of them, that are not for the documents that `documents` marks."""

    groups: tuple[str, ...]
    documents: Callable[[pa.RecordBatch], Bool]


class Mender(Protocol):
    """Changes the texts or the metadata of documents that are kept. One that changes measured places must take its
    turn first."""

    @property
    def turn(self) -> Turn:
        """When it is applied."""

    @property
    def column(self) -> str:
        """What it changes: the documents' text, or their metadata."""

    def touches(self, signals: pa.RecordBatch) -> Bool:
        """Which documents it changes."""

    def mend(self, text: str, signals: pa.RecordBatch, row: int) -> Change:
        """Change what stands in its column in this row."""


@dataclass(frozen=True)
class Family:
    """A family of signals. Functions with `...` get the config's sections named in `fields`, in that order.

    `measured_by` gives the config of `signals`, or None when the family is switched off; the config of `model` is its
    field `model`. `signals` reads the documents, the benchmarks if `reads_benchmarks`, the model if there is one, and
    if `can_be_last` the artifact of `passed`, which is None where it measures all documents.
    """

    fields: tuple[str, ...]
    signals: ObtainableStage
    measured_by: Callable[..., Any]
    rules: Callable[..., Iterable[Rule]]
    model: ObtainableStage | None = None
    reads_benchmarks: bool = False
    # Whether it can be measured for those documents only that pass the rules of the others: `filter.measured_last`
    can_be_last: bool = False
    # Digests of what deciding reads outside the store; they enter the key of `filter`
    fingerprints: Callable[..., Mapping[str, str]] | None = None
    # How texts that are kept change, None for not at all; made in the process that uses it
    mender: Callable[..., Mender | None] | None = None
    # Rules that some documents are spared, as what replaces them judges those documents better
    spares: Callable[..., Spared | None] | None = None
    # (sections…, texts) → the texts as people may see them in reports
    redact: Callable[..., list[str]] | None = None
    # (sections…, the artifact of signals, out): what else the family adds to the filter's artifact
    finish: Callable[..., None] | None = None
    # (sections…, runtime): raises a GristmillError for what measuring needs and this machine has not
    check_here: Callable[..., None] | None = None

    @property
    def name(self) -> str:
        """The name of the family and of its signals."""
        return self.signals.name

    def sections(self, config: StageConfig) -> tuple[Any, ...]:
        """The family's own sections of the filter's config."""
        return tuple(getattr(config, field) for field in self.fields)

    def sources(self, config: StageConfig) -> dict[str, str]:
        """Digests of what measuring reads outside the store: a filter that knew nothing of them would not notice that
        its signals have changed. Raises SourceError for what is not there."""
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
        """The configs of what `measure` obtains, by name."""
        measuring = self.measured_by(*self.sections(config))
        if measuring is None:
            return {}
        return {self.name: measuring, **({self.model.name: measuring.model} if self.model else {})}

    def measure(
        self, config: StageConfig, documents: Artifact, benchmarks: Artifact, passed: Artifact | None, out: Output
    ) -> tuple[Artifact | None, Artifact | None]:
        """The artifacts of the model and of the signals, each None where the config asks for none."""
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
    """The name of a column beside those of all families: a signal of the profile puts its own name before it."""
    return f"{family}.{column}" if "." in family else column


def measuring_half(section: Any) -> Any:
    """The config of the signals in a section; None for a section that is switched off."""
    return None if section is None else section.measure
