"""Rejection sampling: several answers to a prompt, of which rewards choose what later links learn from.

config.py     the settings
answerer.py   who answers: the chain's model, a teacher, or an endpoint
choose.py     which answers become instructions and pairs
run.py        the child process
stage.py      the stage
"""

from tasks.posttrain.best_of_n.config import BestOfNConfig
from tasks.posttrain.best_of_n.stage import best_of_n

__all__ = ["BestOfNConfig", "best_of_n"]
