"""The equations of PPO for language models, each from its source. The tests repeat them in numpy, token by token.

Shapes: B answers, T tokens of an answer. `mask` is 1 for tokens of an answer and 0 for the padding after them.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

KlEstimator = Literal["k1", "k3"]


def kl_of_tokens(log_policy_BT: Tensor, log_reference_BT: Tensor, estimator: KlEstimator) -> Tensor:
    """An estimate of KL(policy ‖ reference) at each sampled token (Schulman 2020, "Approximating KL divergence").

    With d = log π_ref − log π, k1 = −d is unbiased and of either sign. k3 = exp(d) − 1 − d is unbiased too, and never
    negative.
    """
    d_BT = log_reference_BT - log_policy_BT
    return -d_BT if estimator == "k1" else d_BT.exp() - 1 - d_BT


def rewards_of_tokens(score_B: Tensor, kl_BT: Tensor, coefficient: float, mask_BT: Tensor) -> Tensor:
    """−β·KL at each token, plus the score of the answer at its last (Stiennon et al. 2020, §3.4, and Ouyang et al.
    2022, equation 2, without the pretraining term)."""
    rewards_BT = -coefficient * kl_BT * mask_BT
    last_B = mask_BT.sum(1).long() - 1
    return rewards_BT.scatter_add(1, last_B[:, None], score_B[:, None].to(rewards_BT.dtype))


def advantages_and_returns(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, discount: float, decay: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2015, equation 16): A_t = δ_t + γλ·A_{t+1}, where
    δ_t = r_t + γ·V_{t+1} − V_t, and V is 0 after the end of an answer. The return is A_t + V_t."""
    values_BT = values_BT * mask_BT
    advantages_BT = torch.zeros_like(values_BT)
    following_B = torch.zeros_like(values_BT[:, 0])
    after_B = torch.zeros_like(following_B)
    for t in reversed(range(values_BT.shape[1])):
        delta_B = rewards_BT[:, t] + discount * after_B - values_BT[:, t]
        following_B = (delta_B + discount * decay * following_B) * mask_BT[:, t]
        advantages_BT[:, t] = following_B
        after_B = values_BT[:, t]
    return advantages_BT, advantages_BT + values_BT


def whiten(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Normalise to mean 0 and variance 1 over all tokens of answers, with the biased variance (code of Ziegler et al.
    2019)."""
    mean = masked_mean(values_BT, mask_BT)
    variance = masked_mean((values_BT - mean) ** 2, mask_BT)
    return (values_BT - mean) * torch.rsqrt(variance + 1e-8) * mask_BT


def policy_losses(log_policy_BT: Tensor, log_old_BT: Tensor, advantages_BT: Tensor, clip: float) -> Tensor:
    """−min(ρ·A, clip(ρ, 1 − ε, 1 + ε)·A) at each token, with ρ = π / π_old (Schulman et al. 2017, equation 7)."""
    ratio_BT = (log_policy_BT - log_old_BT).exp()
    return -torch.min(ratio_BT * advantages_BT, ratio_BT.clamp(1 - clip, 1 + clip) * advantages_BT)


def value_losses(values_BT: Tensor, old_BT: Tensor, returns_BT: Tensor, clip: float) -> Tensor:
    """½·max((V − R)², (clip(V, V_old − ε, V_old + ε) − R)²) at each token (Schulman et al. 2017, the value loss of
    §5, clipped as in OpenAI's code, see Engstrom et al. 2020, §3)."""
    near_BT = torch.clamp(values_BT, old_BT - clip, old_BT + clip)
    return 0.5 * torch.max((values_BT - returns_BT) ** 2, (near_BT - returns_BT) ** 2)


def adapt_beta(coefficient: float, kl: float, target: float, samples: int, horizon: float) -> float:
    """The coefficient of the KL penalty after a batch of n = `samples` answers whose mean divergence, summed over the
    tokens of an answer, was `kl` (Ziegler et al. 2019, §2.2): β·(1 + clip((KL − target) / target, ±0.2)·n / horizon).
    """
    error = min(0.2, max(-0.2, kl / target - 1))
    return coefficient * (1 + error * samples / horizon)


def masked_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean over tokens of answers."""
    return (values_BT * mask_BT).sum() / mask_BT.sum()
