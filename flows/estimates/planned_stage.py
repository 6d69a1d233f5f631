"""A stage as it stands in a plan, before anything is made."""

from __future__ import annotations

from dataclasses import dataclass

from storage.artifact import Artifact
from storage.keys import KeyPayload
from storage.manifest import Manifest
from tasks.stage.config import StageConfig
from tasks.stage.protocol import Forecast, Input


class Pending(Artifact):
    """Stands for an artifact that is not made yet."""

    def part(self, name: str) -> Artifact:
        """A part of what is not made is not made."""
        return self

    def whole(self) -> Artifact:
        """Nor is the whole."""
        return self


@dataclass(frozen=True)
class PlannedStage:
    """One line of the plan. `payload` is None when an input is not made yet."""

    name: str
    hit: bool
    why: str
    payload: KeyPayload | None
    manifest: Manifest | None  # of the hit, or of the nearest earlier artifact
    inputs: tuple[Input, ...]
    config: StageConfig
    forecast: Forecast | None = None
    refresh: frozenset[str] = frozenset()  # stages and parts that the run makes anew
