"""Smaller models by leaving out what they use least, to be healed by further training.

config.py      how much is kept
importance.py  what a model uses: layers, neurons, heads and channels, measured on conversations
cut.py         the smaller model
run.py         the child process
stage.py       the stage
"""

from tasks.posttrain.prune.config import PruneConfig
from tasks.posttrain.prune.stage import prune

__all__ = ["PruneConfig", "prune"]
