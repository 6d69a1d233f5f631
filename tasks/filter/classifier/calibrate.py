"""Precision by threshold on labelled texts: half of them fit a sigmoid, half give the figures."""

from __future__ import annotations

import numpy as np

from storage.errors import SourceError
from storage.shards.arrays import Float64
from tasks.filter.classifier.config import ClassifierConfig
from tasks.filter.classifier.workers import score_pieces
from tasks.filter.fasttext_model.calibration import area_under_curve, fit_sigmoid, threshold_table
from tasks.filter.fasttext_model.labelled import read_labelled
from tasks.filter.fasttext_model.sample import draw
from tasks.stage.output import Output

LEAST = 20  # of each class in each half
EDGE = 1e-9  # minimum distance of probabilities from 0 and 1, where the log-odds would be infinite


def calibrate(config: ClassifierConfig, out: Output) -> None:
    """Score whole labelled texts. For each probability of being positive, tabulate the equivalent score, and precision
    and recall with this threshold. Raises SourceError for too few texts of a class."""
    examples = {example.id: example for file in config.labelled for example in read_labelled(file)}
    ordered = [examples[name] for name in sorted(examples)]
    positive = np.array([example.positive for example in ordered], np.bool_)
    tested = np.array([draw(example.id, "held out") < 0.5 for example in ordered], np.bool_)
    for half in (positive[tested], positive[~tested]):
        if min(int(half.sum()), int((~half).sum())) < LEAST:
            raise SourceError(
                f"A half of the labelled texts of {config.named} has {int(half.sum())} positive and "
                f"{int((~half).sum())} other texts, but {LEAST} of each are needed.",
                "Label more texts, or leave `labelled` out.",
            )
    scores = score_pieces(out.path, [example.text for example in ordered], out, "labelled", whole=True)
    inputs = _spread(config, scores)
    sigmoid = fit_sigmoid(inputs[~tested], positive[~tested])
    chances = sigmoid(inputs)
    rows = threshold_table(chances[tested], positive[tested])
    out.table(
        "Threshold and precision",
        [{"score": _score_at(config, sigmoid.slope, sigmoid.offset, row["threshold"]), **row} for row in rows],
    )
    out.count(labelled=len(ordered), auc=round(area_under_curve(scores[tested], positive[tested]), 4))


def _spread(config: ClassifierConfig, scores: Float64) -> Float64:
    """The log-odds of probabilities, or other scores as they are."""
    if config.output != "probability":
        return scores
    inside = np.clip(scores, EDGE, 1 - EDGE)
    return np.asarray(np.log(inside / (1 - inside)))


def _score_at(config: ClassifierConfig, slope: float, offset: float, chance: float) -> float | None:
    """The score at which the sigmoid gives this probability, or None for a classifier that is no better than chance."""
    if slope <= 0:
        return None
    place = (np.log(chance / (1 - chance)) - offset) / slope
    return round(float(1 / (1 + np.exp(-place)) if config.output == "probability" else place), 6)
