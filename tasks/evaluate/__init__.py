"""The `evaluate` stage: models by name, side by side.

config.py         which benchmarks, and how much of each
stage.py          the stage: obtains the parts, writes scores.json and scores.md
benchmarks.py     the chosen benchmarks, with their questions
score/            one model and one benchmark: lm-evaluation-harness, in a child
language/         bits per byte on held-out text and on files
learning_curves/  snapshots of pretraining, as curves over tokens
other_models/     models outside the chain
side_by_side/     answers to the same prompts, compared in pairs
votes/            comparisons by people
safety/           toxicity, personal data, memorised text, refusals
subsets.py        questions whose text is in the training documents, scored separately
"""

from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.language.stage import language_modelling
from tasks.evaluate.score.stage import score
from tasks.evaluate.stage import evaluate

__all__ = ["EvaluateConfig", "evaluate", "language_modelling", "score"]
