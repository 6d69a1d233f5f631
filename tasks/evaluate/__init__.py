"""The `evaluate` stage: the base, the tuned and the aligned model side by side.

config.py      what a profile says
stage.py       the stage: starts the child, writes scores.json and scores.md
run.py         the child: lm-evaluation-harness in process, and bits per byte
benchmarks.py  local benchmark files as tasks of the harness
subsets.py     questions that the training text holds, scored apart
scores.py      what was measured, with its chance level and its error
"""

from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.stage import evaluate

__all__ = ["EvaluateConfig", "evaluate"]
