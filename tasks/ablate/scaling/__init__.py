"""The stage `scaling`: the law of a ladder of trainings, and what it predicts."""

from tasks.ablate.scaling.config import RungConfig, ScalingConfig, SizeConfig, TargetConfig
from tasks.ablate.scaling.saved import read_law
from tasks.ablate.scaling.stage import scaling

__all__ = ["RungConfig", "ScalingConfig", "SizeConfig", "TargetConfig", "read_law", "scaling"]
