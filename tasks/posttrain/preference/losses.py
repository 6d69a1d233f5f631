"""The losses of ORPO, CPO, SimPO and KTO, an equation each.

Log P(y | x) of an answer is the sum over its tokens, and its mean is that divided by their number. Every loss is of a
pair or of an answer, so that a batch's loss is the mean over these, whatever the micro-batches.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


class Answers(NamedTuple):
    """Log P(y | x) and the number of tokens of each answer of a batch."""

    sums: Tensor
    tokens: Tensor

    @property
    def means(self) -> Tensor:
        """Log P(y | x) per token."""
        return self.sums / self.tokens


def orpo_losses(chosen: Answers, rejected: Answers, weight: float) -> Tensor:
    """Hong et al. 2024, equations 3 to 7, over one pair: −log P(y_w | x) − λ log σ(log odds(y_w | x) / odds(y_l | x)),
    with log P per token and odds(y | x) = P / (1 − P)."""
    log_odds_ratio = log_odds(chosen.means) - log_odds(rejected.means)
    return -chosen.means - weight * logsigmoid(log_odds_ratio)


def log_odds(log_probabilities: Tensor) -> Tensor:
    """log(P / (1 − P)) of log P, which must not be above 0."""
    # A model that is certain has log P = 0 in float32, and infinite odds
    below = log_probabilities.clamp(max=-torch.finfo(log_probabilities.dtype).tiny)
    return below - torch.log(-torch.expm1(below))


def cpo_losses(chosen: Answers, rejected: Answers, beta: float, nll_weight: float) -> Tensor:
    """Xu et al. 2024, equations 3 to 5: −log σ(β log P(y_w | x) − β log P(y_l | x)) − w log P(y_w | x).

    The second term is per token, as in the authors' code, and over one pair."""
    return -logsigmoid(beta * (chosen.sums - rejected.sums)) - nll_weight * chosen.means


def simpo_losses(chosen: Answers, rejected: Answers, beta: float, gamma: float, nll_weight: float) -> Tensor:
    """Meng et al. 2024, equation 6: −log σ(β/|y_w| log P(y_w | x) − β/|y_l| log P(y_l | x) − γ), plus the likelihood
    term of `cpo_losses` by `nll_weight`."""
    return -logsigmoid(beta * (chosen.means - rejected.means) - gamma) - nll_weight * chosen.means


def kto_losses(log_ratios: Tensor, desirable: Tensor, point: Tensor, beta: float) -> Tensor:
    """Ethayarajh et al. 2024, equations 7 and 8, without λ: 1 − σ(β (r − z₀)) of a desirable answer and
    1 − σ(β (z₀ − r)) of another, where r = log π(y | x) / π_ref(y | x), and the reference point z₀ estimates the
    divergence of the model from the reference."""
    signs = desirable.to(log_ratios.dtype) * 2 - 1
    return 1 - torch.sigmoid(signs * beta * (log_ratios - point))
