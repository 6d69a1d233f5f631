"""What a session and an output need to know of a stage, so that neither has to import the decorator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from storage.artifact import Artifact
from storage.keys import KeyPayload
from tasks.stage.config import StageConfig
from tasks.stage.runtime import Runtime


class Forecast(NamedTuple):
    """What a stage will need: bytes of memory at its peak, bytes of disk while it works; and how it goes about it."""

    memory: int
    disk: int
    note: str


Forecaster = Callable[[Any, int, Runtime], Forecast]  # (config, documents, runtime)


class AnyStage(Protocol):
    """A stage as the decorator makes it."""

    name: str
    function: Callable[..., None]
    forecast: Forecaster | None

    def payload(self, config: StageConfig, inputs: Sequence[Artifact]) -> KeyPayload:
        """What bears the identity of this stage's artifact."""

    def materialize(
        self, config: StageConfig, inputs: Sequence[Artifact], *, refresh: bool = False
    ) -> tuple[Artifact, bool]:
        """The artifact of this config and these inputs, and whether it was in the store."""
