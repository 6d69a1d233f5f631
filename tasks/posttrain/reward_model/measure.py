"""Measures a trained reward model: the mean reward of training answers, and its accuracy on held-out pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tasks.posttrain.reward_model.calibration import accuracy, calibration, expected_calibration_error
from tasks.posttrain.reward_model.model import Judge, write_mean
from tasks.posttrain.rows.form import Row

MEAN_PAIRS = 1024  # the first training pairs, for the mean reward: more would change no digit that matters


def measure_judge(folder: Path, train: Sequence[Row], held_out: Sequence[Row], device: torch.device) -> dict[str, Any]:
    """Write the mean reward to the folder's config.json, and return the measures that `report_judge` reports."""
    judge = Judge.load(folder, device)
    of_training = judge.rewards(_conversations(train[:MEAN_PAIRS]))
    mean = sum(of_training) / len(of_training)
    write_mean(folder, mean)
    measured: dict[str, Any] = {"reward_mean": round(mean, 6)}
    if held_out:
        rewards = judge.rewards(_conversations(held_out))
        margins = [chosen - rejected for chosen, rejected in zip(rewards[::2], rewards[1::2], strict=True)]
        share, low, high = accuracy(margins)
        bins = calibration(margins)
        measured |= {
            "held_out_accuracy": round(share, 6),
            "held_out_accuracy_95": [round(low, 6), round(high, 6)],
            "calibration_error": round(expected_calibration_error(bins), 6),
            "calibration": [each._asdict() for each in bins],
        }
    return measured


def _conversations(rows: Sequence[Row]) -> list[list[dict[str, str]]]:
    """Both conversations of each row, first the one with the preferred answer."""
    return [[*row["prompt"], *row[answer]] for row in rows for answer in ("chosen", "rejected")]
