"""Several models that were trained from one base, merged into one without training.

config.py   which models, and how
combine.py  their changes to the base, combined
stage.py    the stage
"""

from tasks.posttrain.merge.config import MergeConfig
from tasks.posttrain.merge.stage import merge

__all__ = ["MergeConfig", "merge"]
