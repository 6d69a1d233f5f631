"""pass@k: the chance that at least one of k samples solves a problem (Chen et al. 2021, Evaluating Large Language
Models Trained on Code, eq. 1).

With n samples of which c pass, 1 - C(n-c, k) / C(n, k) is its unbiased estimate; 1 - (1 - c/n)^k, which one might take
instead, is too low. It is computed as a product, because the binomials of a few hundred samples exceed a double.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from storage.errors import ConfigError


@dataclass(frozen=True)
class PassAtK:
    """The mean over problems and its standard error; the error is nan for a single problem."""

    k: int
    value: float
    standard_error: float
    problems: int


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The estimate for one problem with `samples` programs, `passed` of which pass. Raises ConfigError for fewer
    samples than k, and for counts that can't be."""
    if k < 1 or not 0 <= passed <= samples:
        raise ConfigError(
            f"pass@{k} of {passed} passed among {samples} samples is not defined.",
            "k is at least 1, and at most all samples pass.",
        )
    if samples < k:
        raise ConfigError(f"pass@{k} needs {k} samples a problem, and there are {samples}.", "Sample more, or lower k.")
    if samples - passed < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / number for number in range(samples - passed + 1, samples + 1))


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> PassAtK:
    """The mean over problems, each with its (samples, passed).

    The standard error is that of a mean of independent problems, by the spread of their estimates, which has the chance
    of sampling in it too. Raises ConfigError as `pass_at_k`, and without problems.
    """
    if not counts:
        raise ConfigError(f"There is no problem to estimate pass@{k} on.", "Check the task's data.")
    estimates = [pass_at_k(samples, passed, k) for samples, passed in counts]
    mean = math.fsum(estimates) / len(estimates)
    error = math.nan
    if len(estimates) > 1:
        spread = math.fsum((one - mean) ** 2 for one in estimates)
        error = math.sqrt(spread / (len(estimates) - 1) / len(estimates))
    return PassAtK(k, mean, error, len(estimates))
