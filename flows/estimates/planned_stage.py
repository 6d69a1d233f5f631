"""A stage of a plan, before anything is made."""

from __future__ import annotations

from dataclasses import dataclass

from storage.artifact import Artifact
from storage.keys import KeyPayload
from storage.manifest import Manifest
from tasks.stage.config import StageConfig
from tasks.stage.protocol import Forecast, Input


class Pending(Artifact):
    """A placeholder for an artifact that is not made yet."""

    def part(self, name: str) -> Artifact:
        """A part of it, which is not made either."""
        return self

    def whole(self) -> Artifact:
        """The whole, which is not made either."""
        return self


@dataclass(frozen=True)
class PlannedStage:
    """One line of the plan. `payload` is None if an input is not made yet."""

    name: str
    hit: bool
    why: str
    payload: KeyPayload | None
    manifest: Manifest | None  # of the hit, or of the nearest earlier artifact
    inputs: tuple[Input, ...]
    config: StageConfig
    forecast: Forecast | None = None
    refresh: frozenset[str] = frozenset()  # stages and parts that the run rebuilds
