"""Scaled rotary positions: what frequencies are divided by, so that a model reads beyond the context of its training.

No torch: shapes hold a scaling, and plans load shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Kind = Literal["linear", "yarn", "llama3"]
BETA_FAST, BETA_SLOW = 32.0, 1.0  # YaRN, section 3.2


@dataclass(frozen=True)
class RopeScaling:
    """A scaling in the terms of transformers' `rope_parameters`. None is what they leave out."""

    rope_type: Kind
    factor: float
    original_max_position_embeddings: int | None = None  # the context that the frequencies were trained for
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """The settings of transformers, without the base of the frequencies."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def attention(self) -> float:
        """The factor on queries and keys, for YaRN 0.1 ln(factor) + 1 unless it is set (Peng et al. 2023, §3.4)."""
        if self.rope_type != "yarn":
            return 1.0
        return attention_of(self.factor) if self.attention_factor is None else self.attention_factor

    def divisors(self, theta: float, head_dim: int) -> list[float]:
        """(D/2,) what each frequency theta^(-2i/D) is divided by.

        All by the factor (linear, Chen et al. 2023), or only those of long waves: by their turns within the original
        context (llama3, Grattafiori et al. 2024, §3.4.2), or by a ramp over the dimensions (YaRN, Peng et al. 2023,
        §3.2).
        """
        pairs = range(head_dim // 2)
        if self.rope_type == "linear":
            return [self.factor for _ in pairs]
        assert self.original_max_position_embeddings is not None
        original = self.original_max_position_embeddings
        if self.rope_type == "llama3":
            low, high = self.low_freq_factor, self.high_freq_factor
            assert low is not None
            assert high is not None
            turns = [original / (2 * math.pi * theta ** (2 * pair / head_dim)) for pair in pairs]
            kept = [min(1.0, max(0.0, (each - low) / (high - low))) for each in turns]
        else:
            ends = (self.beta_fast or BETA_FAST, self.beta_slow or BETA_SLOW)
            fast, slow = (
                head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in ends
            )
            first, last = max(math.floor(fast), 0), min(math.ceil(slow), head_dim - 1)
            width = (last - first) or 0.001
            kept = [1 - min(1.0, max(0.0, (pair - first) / width)) for pair in pairs]
        return [1 / ((1 - share) / self.factor + share) for share in kept]


def attention_of(factor: float) -> float:
    """YaRN's factor on queries and keys for positions that are stretched by `factor`."""
    return 0.1 * math.log(factor) + 1 if factor > 1 else 1.0


def scaling_of(parameters: Mapping[str, Any]) -> RopeScaling | None:
    """The scaling in `rope_parameters` of transformers. None without one, and for one that isn't of these kinds or has
    other settings."""
    settings = {name: value for name, value in parameters.items() if name not in ("rope_theta", "type")}
    known = {field.name for field in fields(RopeScaling)}
    if settings.get("rope_type") not in get_args(Kind) or not settings.keys() <= known:
        return None
    return RopeScaling(**settings)
