"""Checks a format's proof against its limits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from storage.errors import ParityError
from tasks.export.proof.compare import Parity
from tasks.export.proof.weights import WeightError
from tasks.export.tolerance import Tolerance

SCALE = 0.05  # error of a matrix's scale beyond what rounding explains: sound files of few bits have up to 0.03
NUMBER = 0.01  # error of a vector's number: vectors are rounded to bfloat16 at most


def require(name: str, parity: Parity, weights: WeightError, tolerance: Tolerance) -> dict[str, Any]:
    """The numbers and their limits. Raises ParityError, naming numbers beyond their limit and the worst tensor."""
    problems = []
    if not parity.mean_divergence <= tolerance.max_divergence:
        problems.append(f"mean divergence {parity.mean_divergence:.2e} nats, at most {tolerance.max_divergence:g}")
    apart, most = parity.runtime_divergence, tolerance.max_runtime_divergence
    if apart is not None and not apart <= most:
        problems.append(f"its runtime is {apart:.2e} nats from transformers with the same weights, at most {most:g}")
    if not parity.increase_high <= tolerance.max_perplexity_increase:
        interval = f"{parity.increase_low:.2%} to {parity.increase_high:.2%}"
        limit = f"at most {tolerance.max_perplexity_increase:.2%}"
        problems.append(f"perplexity up by {parity.perplexity_increase:.2%} ({interval}), {limit}")
    if tolerance.same_greedy and parity.same_greedy < parity.prompts:
        problems.append(f"{parity.prompts - parity.same_greedy} of {parity.prompts} greedy continuations differ")
    limits = (
        ("row", weights.row, tolerance.max_weight_error),
        ("scale", weights.scale, SCALE),
        ("number", weights.number, NUMBER),
    )
    for what, worst, most in limits:
        if not worst.error <= most:
            problems.append(f"a {what} of {worst.tensor} is {worst.error:.2g} off, at most {most:g}")
    if problems:
        raise ParityError(
            f"{name} doesn't match its checkpoint: {'; '.join(problems)}. Its weights differ {weights.where}. "
            "Nothing was published.",
            f"Leave {name} out of export.formats, or set export.tolerances.{name} if you accept the loss.",
        )
    numbers = {**asdict(parity), "weight_error": weights.row.error, "worst_tensor": weights.row.tensor}
    rounded = {key: round(value, 8) if isinstance(value, float) else value for key, value in numbers.items()}
    return {**rounded, "tolerance": tolerance.model_dump()}
