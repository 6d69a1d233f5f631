"""Calibration of the next-token distribution: of the predictions made with a confidence of 0.7, are 70 % right?

The confidence is the probability of the most likely token. The expected calibration error (ECE, Naeini et al. 2015, Guo
et al. 2017) uses bins of equally many tokens, because fixed widths would leave most of them nearly empty. It is never
negative, so even a calibrated model shows more than zero: that expected value is reported with it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from storage.shards.arrays import Int64
from tasks.evaluate.language.ratios import ratio
from tasks.evaluate.language.scores import Scores


def calibration(scores: Scores, document: Int64, bins: int) -> dict[str, Any]:
    """{"accuracy", "confidence", "ece", "ece_if_calibrated", "bins": […]}. `document` is that of each token: standard
    errors of accuracies are over documents.

    `ece_if_calibrated` is the expectation if right answers were drawn independently with the stated confidences.
    """
    order = np.argsort(scores.confidence, kind="stable")
    rows: list[dict[str, Any]] = []
    number = len(order)
    ece = floor = 0.0
    for part in np.array_split(order, min(bins, number)):
        confidence, right = scores.confidence[part].astype(np.float64), scores.right[part].astype(np.float64)
        _, cluster = np.unique(document[part], return_inverse=True)
        sums, sizes = np.bincount(cluster, right).astype(np.float64), np.bincount(cluster).astype(np.float64)
        measured = ratio(sums, sizes)
        assert measured is not None
        mean, share = float(confidence.mean()), len(part) / number
        ece += share * abs(measured.value - mean)
        # The expected absolute value of a normal mean around zero is √(2/π) standard deviations
        floor += share * math.sqrt(2 / math.pi * float((confidence * (1 - confidence)).sum())) / len(part)
        rows.append(
            {
                "from": float(confidence[0]),
                "to": float(confidence[-1]),
                "tokens": len(part),
                "confidence": mean,
                "accuracy": measured.value,
                "accuracy_stderr": measured.error,
            }
        )
    return {
        "accuracy": float(scores.right.mean()),
        "confidence": float(scores.confidence.mean(dtype=np.float64)),
        "ece": ece,
        "ece_if_calibrated": floor,
        "bins": rows,
    }
