"""Shares and means with their 95 % intervals: Wilson's for independent questions, the bootstrap's for several samples
per prompt."""

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
    """The share of `right` in `total` independent questions, or None for no questions."""
    if not total:
        return None
    value = right / total
    low, high = wilson(right, total)
    return _number(value, math.sqrt(value * (1 - value) / max(1, total - 1)), low, high, total)


def mean(values: Sequence[float], resamples: int, seed: int) -> Number | None:
    """The mean of one value per prompt, with an interval from resampled prompts. Their weights are drawn a part at a
    time, so that memory is bounded. If all values are the same, as for one prompt, the interval is None, because the
    bootstrap would be certain."""
    if not values:
        return None
    number, array = len(values), np.array(values, np.float64)
    if np.ptp(array) == 0:
        return _number(float(array[0]), None, None, None, number)
    step = max(1, CHUNK // number)
    drawn = np.concatenate(
        [
            prompt_weights(number, min(step, resamples - start), seed + start) @ array / number
            for start in range(0, resamples, step)
        ]
    )
    value = float(array.mean())
    ends = interval(value, drawn, number)
    return _number(value, float(array.std(ddof=1)) / math.sqrt(number), ends.low, ends.high, number)


def _number(value: float, stderr: float | None, low: float | None, high: float | None, items: int) -> Number:
    numbers = {"value": value, "stderr": stderr, "low": low, "high": high}
    return {name: None if one is None else round(one, DIGITS) for name, one in numbers.items()} | {"items": items}


def cell(number: Number | None, digits: int = 3) -> str:
    """A number with its interval, for a table."""
    if number is None or number["value"] is None:
        return "none"
    shown = f"{number['value']:.{digits}f}"
    return shown if number["low"] is None else f"{shown} ({number['low']:.{digits}f} to {number['high']:.{digits}f})"
