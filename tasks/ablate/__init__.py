"""The stage `ablate`: what each arm of a matrix of runs changes, and whether the difference is real."""

from tasks.ablate.config import AblateConfig, ArmConfig
from tasks.ablate.stage import ablate

__all__ = ["AblateConfig", "ArmConfig", "ablate"]
