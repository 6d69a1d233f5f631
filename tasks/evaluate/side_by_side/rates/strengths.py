"""Strengths of models by all their comparisons (Bradley & Terry 1952), on the scale of Elo ratings.

P(i beats j) = σ(θᵢ − θⱼ), and a rating is 1000 + 400/ln 10 · θ, so that 400 points are odds of ten to one. A tie is
half a win for each. A small penalty ½ λ Σ θ² keeps the strength of a model that always wins finite, and the mean at
zero.

Shapes: M models, R resamples, P prompts.
"""

from __future__ import annotations

import math

import numpy as np

from tasks.evaluate.side_by_side.rates.win_rate import Array

POINTS = 400 / math.log(10)
MIDDLE = 1000.0
RIDGE = 0.01
STEPS, STEP, TOLERANCE = 100, 1.0, 1e-10


def strengths(wins_RMM: Array) -> Array:
    """(R, M) the strengths θ of the most likely Bradley–Terry model, where wins[r, i, j] is how often i beat j. By
    Newton's method with bounded steps on a concave function, for all resamples at once."""
    models = wins_RMM.shape[-1]
    games_RMM = wins_RMM + wins_RMM.swapaxes(1, 2)
    won_RM = wins_RMM.sum(2)
    theta_RM = np.zeros(wins_RMM.shape[:2])
    for _ in range(STEPS):
        p_RMM = 0.5 * (1 + np.tanh((theta_RM[:, :, None] - theta_RM[:, None, :]) / 2))
        gradient_RM = won_RM - (games_RMM * p_RMM).sum(2) - RIDGE * theta_RM
        spread_RMM = games_RMM * p_RMM * (1 - p_RMM)
        hessian_RMM = np.eye(models) * (spread_RMM.sum(2) + RIDGE)[:, None, :] - spread_RMM
        step_RM = np.linalg.solve(hessian_RMM, gradient_RM[:, :, None])[:, :, 0]
        theta_RM = theta_RM + np.clip(step_RM, -STEP, STEP)
        if np.abs(step_RM).max() < TOLERANCE:
            break
    return theta_RM


def elo(theta_RM: Array, anchor: int | None = None) -> Array:
    """(R, M) ratings with a mean of 1000, or with 1000 for the model `anchor`."""
    if anchor is not None:
        theta_RM = theta_RM - theta_RM[:, anchor : anchor + 1]
    ratings: Array = MIDDLE + POINTS * theta_RM
    return ratings
