"""Smaller models: the parts that a model uses least are left out, and further training heals it.

config.py      how much is kept
importance.py  how much a model uses its layers, neurons, heads and channels, measured on conversations
cut.py         the smaller model
run.py         the child process
stage.py       the stage
"""

from tasks.posttrain.prune.config import PruneConfig
from tasks.posttrain.prune.stage import prune

__all__ = ["PruneConfig", "prune"]
