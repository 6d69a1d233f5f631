"""Training a two-class fastText model: split by hash, training in a child process, calibration, evaluation.

By default a tenth of the examples calibrates the score and another tenth evaluates it (see `TrainingConfig.held_out`).
Neither is trained on. The split and the order of training depend only on hashes of IDs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from storage.errors import SourceError
from storage.shards.arrays import Bool, Float64
from tasks.children.supervise import run_child
from tasks.filter.fasttext_model.calibration import Sigmoid, area_under_curve, fit_sigmoid, threshold_table
from tasks.filter.fasttext_model.child import Spec
from tasks.filter.fasttext_model.config import TrainingConfig
from tasks.filter.fasttext_model.labelled import Example
from tasks.filter.fasttext_model.sample import draw
from tasks.filter.fasttext_model.scorer import CALIBRATION, MODEL, NEGATIVE, POSITIVE, Scorer
from tasks.filter.fasttext_model.tokens import tokens
from tasks.stage.output import Output

LEAST = 50  # examples per class: with fewer, neither the model nor its figures mean anything
FRESH_MEMORY_FROM = 1 << 16  # bytes: see `child.py`
CHILD = "tasks.filter.fasttext_model.child"
BATCH = 4096  # examples scored at once


class Split(NamedTuple):
    """The examples of each split."""

    trained: list[Example]
    calibrated: list[Example]
    tested: list[Example]


def train_classifier(
    config: TrainingConfig, examples: Iterable[Example], out: Output, base_rate: float | None = None
) -> list[Example]:
    """Train on examples, write model and calibration, count held-out figures, and tabulate precision by threshold.
    Returns the test set. Scores are probabilities for data of which a share `base_rate` is positive (None: the share in
    the examples).

    Raises SourceError if a class has too few examples, TrainingError if training fails.
    """
    parts = split(examples, config.held_out)
    lines = out.scratch / "examples.txt"
    with lines.open("w", encoding="utf-8") as file:
        for example in parts.trained:
            file.write(f"__label__{POSITIVE if example.positive else NEGATIVE} {tokens(example.text)}\n")
    out.progress(0, 1, "models", f"training on {len(parts.trained):,} examples")
    spec = out.scratch / "spec.json"
    spec.write_text(Spec(config=config, examples=lines, model=out.path / MODEL).model_dump_json())
    command = [sys.executable, "-m", CHILD, str(spec)]
    training: dict[str, Any] = {}
    run_child(command, out=out, environment=_environment(), log=out.scratch / "child.log", on_line=training.update)
    if training["attempts"] > 1:
        out.warn(f"trained at a learning rate of {training['learning_rate']:g}, halved after each NaN")
    scorer = Scorer(out.path / MODEL, Sigmoid(1.0, 0.0))
    odds, positive = _outcomes(scorer, parts.calibrated)
    fitted = fit_sigmoid(odds, positive)
    sigmoid = fitted if base_rate is None else fitted.at_rate(float(positive.mean()), base_rate)
    (out.path / CALIBRATION).write_text(json.dumps(sigmoid._asdict()) + "\n")
    log_odds, positive = _outcomes(scorer, parts.tested)
    out.count(
        **training,
        examples={use: _sizes(part) for use, part in parts._asdict().items()},
        accuracy=round(float(np.mean((fitted(log_odds) >= 0.5) == positive)), 4),
        auc=round(area_under_curve(log_odds, positive), 4),
    )
    out.table("Training", [{name.replace("_", " "): value for name, value in training.items()}])
    out.table("Threshold and expected precision", threshold_table(sigmoid(log_odds), positive, base_rate))
    return parts.tested


def split(examples: Iterable[Example], held_out: float) -> Split:
    """The splits, each in training order. A repeated ID counts once. Raises SourceError for too few examples of a
    class."""
    known = {example.id: example for example in examples if tokens(example.text)}
    ordered = sorted(known.values(), key=lambda example: (draw(example.id, "order"), example.id))
    sizes = _sizes(ordered)
    for name, size in sizes.items():
        if size < LEAST:
            raise SourceError(
                f"There are {size} {name} examples with words, but a classifier needs {LEAST}.",
                "Add sources or files of this class, or switch this classifier off.",
            )
    parts = Split([], [], [])
    for example in ordered:
        place = draw(example.id, "held out")
        parts[0 if place >= held_out else 1 if place >= held_out / 2 else 2].append(example)
    if any(0 in _sizes(part).values() for part in parts):
        raise SourceError(
            f"{sizes[POSITIVE]} positive and {sizes[NEGATIVE]} negative examples leave a held-out split without one "
            "class.",
            "Add sources or files, or raise `held_out`.",
        )
    return parts


def _sizes(examples: Sequence[Example]) -> dict[str, int]:
    ones = sum(example.positive for example in examples)
    return {POSITIVE: ones, NEGATIVE: len(examples) - ones}


def _outcomes(scorer: Scorer, examples: Sequence[Example]) -> tuple[Float64, Bool]:
    odds = [
        scorer.log_odds(pa.array([example.text for example in examples[at : at + BATCH]], pa.string()))[0]
        for at in range(0, len(examples), BATCH)
    ]
    return np.concatenate(odds), np.array([example.positive for example in examples], np.bool_)


def _environment() -> dict[str, str]:
    """This process's environment with only the allocator settings that `child.py` needs."""
    meddling = ("MALLOC_", "LD_PRELOAD", "GLIBC_TUNABLES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(meddling)}
    return {**kept, "MALLOC_MMAP_THRESHOLD_": str(FRESH_MEMORY_FROM), "OMP_NUM_THREADS": "1"}
