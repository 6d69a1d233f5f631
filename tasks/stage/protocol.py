"""A stage as sessions, outputs and plans see it, so that none of them imports the decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from storage.artifact import Artifact
from storage.keys import KeyPayload
from tasks.stage.config import StageConfig
from tasks.stage.runtime import Runtime

Input = Artifact | Mapping[str, Artifact] | None


class Forecast(NamedTuple):
    """A stage's needs: bytes of memory at its peak, bytes of disk while it works, and how it will work."""

    memory: int
    disk: int
    note: str


Forecaster = Callable[[Any, int, Runtime], Forecast]  # (config, documents, runtime)
RuntimeCheck = Callable[[Any, Runtime], None]  # (config, runtime)
AdoptionCheck = Callable[[Any, Artifact, Mapping[str, Artifact]], None]  # (config, folder, inputs by name)
Together = Callable[[Sequence[Any]], Iterator[int]]  # of calls (config, inputs, out): the number of each that is done
PartsOf = Callable[[Any], Mapping[str, StageConfig]]  # (config): the configs of parts, by their names


class AnyStage(Protocol):
    """A stage as the decorator makes it."""

    name: str
    function: Callable[..., None]
    sources: Callable[[Any], Mapping[str, str]] | None
    forecast: Forecaster | None

    def named(self, inputs: Sequence[Input]) -> dict[str, Artifact]:
        """The input artifacts by name."""

    def fingerprints(self, config: StageConfig) -> Mapping[str, str]:
        """Digests of what lies outside the store. Raises SourceError if any of it is missing."""

    def payload(self, config: StageConfig, inputs: Sequence[Input]) -> KeyPayload:
        """The identity of this stage's artifact."""

    def check_runtime(self, config: StageConfig, runtime: Runtime) -> None:
        """Raises ConfigError for settings of the runtime that this stage can't honour."""

    def check_here(self, config: StageConfig, runtime: Runtime) -> None:
        """Raises ConfigError for what the runtime needs and this machine lacks."""

    def materialize(
        self, config: StageConfig, inputs: Sequence[Input], *, refresh: bool = False
    ) -> tuple[Artifact, bool]:
        """The artifact of this config and these inputs, and whether it was in the store."""


class ObtainableStage(AnyStage, Protocol):
    """A stage whose artifact another stage obtains while it works."""

    together: Together | None

    def obtained(self, config: StageConfig, inputs: Sequence[Input]) -> Artifact:
        """The artifact of this config and these inputs, for another stage that is working."""

    def obtained_all(self, calls: Sequence[tuple[StageConfig, Sequence[Input]]]) -> list[Artifact]:
        """As `obtained` for each call. Those that are missing are made together."""
