"""Shares and means with their 95 % intervals: Wilson's of independent questions, the bootstrap's where a prompt has
several samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.evaluate.side_by_side.rates.win_rate import interval, prompt_weights
from tasks.posttrain.reward_model.calibration import wilson

DIGITS = 6
CHUNK = 4_000_000  # weights at a time

Number = dict[str, Any]  # {"value", "stderr", "low", "high", "items"}


def share(right: int, total: int) -> Number | None:
    """Of `total` independent questions."""
    if not total:
        return None
    value = right / total
    low, high = wilson(right, total)
    return _number(value, math.sqrt(value * (1 - value) / max(1, total - 1)), low, high, total)


def mean(values: Sequence[float], resamples: int, seed: int) -> Number | None:
    """Of one value a prompt; prompts are drawn. Its weights are drawn a part at a time, so that memory is bounded.
    Where all values are the same, of one prompt for instance, there is no interval: the bootstrap would be certain."""
    if not values:
        return None
    number, given = len(values), np.array(values, np.float64)
    if np.ptp(given) == 0:
        return _number(float(given[0]), None, None, None, number)
    step = max(1, CHUNK // number)
    drawn = np.concatenate(
        [
            prompt_weights(number, min(step, resamples - start), seed + start) @ given / number
            for start in range(0, resamples, step)
        ]
    )
    value = float(given.mean())
    found = interval(value, drawn, number)
    return _number(value, float(given.std(ddof=1)) / math.sqrt(number), found.low, found.high, number)


def _number(value: float, stderr: float | None, low: float | None, high: float | None, items: int) -> Number:
    def told(number: float | None) -> float | None:
        return None if number is None else round(number, DIGITS)

    return {"value": told(value), "stderr": told(stderr), "low": told(low), "high": told(high), "items": items}


def cell(number: Number | None, digits: int = 3) -> str:
    """As a table shows it."""
    if number is None or number["value"] is None:
        return "none"
    shown = f"{number['value']:.{digits}f}"
    return shown if number["low"] is None else f"{shown} ({number['low']:.{digits}f} to {number['high']:.{digits}f})"
