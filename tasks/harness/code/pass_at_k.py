"""pass@k: the chance that at least one of k samples solves a problem (Chen et al. 2021, Evaluating Large Language
Models Trained on Code, eq. 1).

With n samples of which c pass, 1 - C(n-c, k) / C(n, k) is its unbiased estimate. The obvious 1 - (1 - c/n)^k is too
low. The estimate is computed as a product, because the binomials of a few hundred samples exceed a double.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from storage.errors import ConfigError


@dataclass(frozen=True)
class PassAtK:
    """The mean over problems and its standard error, which is NaN for a single problem."""

    k: int
    value: float
    standard_error: float
    problems: int


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The estimate for one problem with `samples` programs, `passed` of which pass. Raises ConfigError for fewer
    samples than k, and for impossible counts."""
    if k < 1 or not 0 <= passed <= samples:
        raise ConfigError(
            f"pass@{k} of {passed} passed among {samples} samples is not defined.",
            "k is at least 1, and at most all samples pass.",
        )
    if samples < k:
        raise ConfigError(f"pass@{k} needs {k} samples per problem, and got {samples}.", "Sample more, or lower k.")
    if samples - passed < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / number for number in range(samples - passed + 1, samples + 1))


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> PassAtK:
    """The mean over problems, each given as (samples, passed).

    The standard error is that of a mean over independent problems, from the spread of their estimates, which includes
    the randomness of sampling. Raises ConfigError as `pass_at_k` does, and without problems.
    """
    if not counts:
        raise ConfigError(f"pass@{k} needs at least one problem.", "Check the task's data.")
    estimates = [pass_at_k(samples, passed, k) for samples, passed in counts]
    mean = math.fsum(estimates) / len(estimates)
    error = math.nan
    if len(estimates) > 1:
        spread = math.fsum((one - mean) ** 2 for one in estimates)
        error = math.sqrt(spread / (len(estimates) - 1) / len(estimates))
    return PassAtK(k, mean, error, len(estimates))
