"""The config of the stage `scaling`: the trainings of a ladder, and what to predict."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tasks.stage.config import StageConfig


class SizeConfig(StageConfig):
    """A size of the model. `size` is a sixth of its FLOPs a token, the N of the law."""

    width: int
    depth: int
    parameters: int = Field(description="all of them, with the embedding")
    size: float

    @property
    def name(self) -> str:
        """Its name for people."""
        return f"{self.width} × {self.depth}"


class RungConfig(StageConfig):
    """A training of the ladder. `rate` is a factor on the learning rate. Only trainings with 1 are points of the
    law."""

    of: SizeConfig
    tokens: int
    seed: int
    rate: float = 1.0


class TargetConfig(StageConfig):
    """A training whose loss is to be predicted."""

    of: SizeConfig
    tokens: int


class ScalingConfig(StageConfig):
    """The ladder. `sizes` are those that the model can have, in ascending order, and `computes` the FLOPs for which the
    best one is sought. `recipe` has the settings that all trainings share."""

    rungs: dict[str, RungConfig] = Field(min_length=1)
    sizes: list[SizeConfig] = Field(min_length=1)
    targets: dict[str, TargetConfig] = Field({}, description="by name")
    computes: list[float] = Field([], description="FLOPs, in ascending order")
    beyond: bool = Field(False, description="predict beyond ten times the compute of the largest training too")
    diverged: dict[str, str] = Field({}, description="trainings without a loss, and why")
    recipe: dict[str, Any] = Field({}, description="by the name of the setting")
