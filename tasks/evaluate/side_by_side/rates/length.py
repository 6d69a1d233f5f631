"""The win rate corrected for length (Dubois et al. 2024, "Length-Controlled AlpacaEval", §3).

Judges like long answers. A logistic regression explains wins by a term for the models and one for the difference of
lengths, tanh(Δ / sd(Δ)), and the win rate is its prediction for no difference. The paper's third term, a prompt's
difficulty, is left out: it is fitted to other models' results, which aren't available here. Swapping the models gives
1 minus the rate.

Shapes: I items, R resamples, K = 2 coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tasks.evaluate.side_by_side.items import Item
from tasks.evaluate.side_by_side.rates.win_rate import Array

# ½ Σ RIDGE·β² is added to the negative log-likelihood: just enough for a finite fit of a model that wins always, or
# whenever it writes more
RIDGE = np.array([0.01, 0.1])
STEPS, STEP, TOLERANCE = 60, 2.0, 1e-9


def length_controlled(items: Sequence[Item]) -> float:
    """The rate at which the first model wins at equal length."""
    return float(resampled_length_controlled(items, np.ones((1, len(items))))[0])


def resampled_length_controlled(items: Sequence[Item], weights_RI: Array) -> Array:
    """(R,) the same rate with weights of the items, such as those of bootstrap samples. The scale of lengths comes from
    all items."""
    wins_I = np.array([item.winner for item in items])
    delta_I = np.array([float(item.first_length - item.second_length) for item in items])
    scale = delta_I.std()
    if scale == 0:  # a constant difference can't be separated from the models' term
        delta_I, scale = np.zeros_like(delta_I), 1.0
    features_IK = np.stack([np.ones_like(wins_I), np.tanh(delta_I / scale)], 1)
    return _sigmoid(fit(features_IK, wins_I, weights_RI)[:, 0])


def fit(features_IK: Array, wins_I: Array, weights_RI: Array) -> Array:
    """(R, K) the coefficients of the penalised logistic regressions, by Newton's method with bounded steps. A tie
    counts as half a win and half a loss."""
    beta_RK = np.zeros((len(weights_RI), features_IK.shape[1]))
    for _ in range(STEPS):
        p_RI = _sigmoid(beta_RK @ features_IK.T)
        gradient_RK = (weights_RI * (wins_I - p_RI)) @ features_IK - RIDGE * beta_RK
        curvature_RI = weights_RI * p_RI * (1 - p_RI)
        hessian_RKK = np.einsum("ri,ij,ik->rjk", curvature_RI, features_IK, features_IK, optimize=True)
        step_RK = np.linalg.solve(hessian_RKK + np.diag(RIDGE), gradient_RK[:, :, None])[:, :, 0]
        beta_RK = beta_RK + np.clip(step_RK, -STEP, STEP)
        if np.abs(step_RK).max() < TOLERANCE:
            break
    return beta_RK


def _sigmoid(value: Array) -> Array:
    share: Array = 0.5 * (1 + np.tanh(value / 2))  # without overflow
    return share
