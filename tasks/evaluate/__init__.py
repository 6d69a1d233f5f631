"""The `evaluate` stage: models by name, side by side.

config.py      which benchmarks, and how much of each
stage.py       the stage: runs the child, writes scores.json and scores.md
run.py         the child: lm-evaluation-harness in process, and bits per byte
benchmarks.py  local benchmark files as tasks of the harness
subsets.py     questions whose text is in the training documents, scored separately
scores.py      scores with their chance levels and standard errors
"""

from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.stage import evaluate

__all__ = ["EvaluateConfig", "evaluate"]
