"""How far an engine's probabilities are from the trainer's, the weights and limit for that, and what rollouts cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from storage.errors import TrainingError
from tasks.stage.output import Output

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.posttrain.rollouts.config import RolloutConfig
    from tasks.posttrain.rollouts.engine import Sample

MEAN, LARGEST, KL, RATIO = (  # the first two and the last are TRL's names
    "sampling/sampling_logp_difference/mean",
    "sampling/sampling_logp_difference/max",
    "sampling/kl",
    "sampling/importance_sampling_ratio/mean",
)
MEASURES = {MEAN: "engine_difference", LARGEST: "engine_difference_largest", KL: "engine_kl", RATIO: "engine_ratio"}


def kl_of(trainer_BT: Tensor, engine_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The KL divergence of the engine from the trainer, in nats a token, from the log-probabilities of tokens that the
    engine drew (Schulman 2020, k3). Tokens without one (NaN) are left out."""
    kept_BT = mask_BT.bool() & ~engine_BT.isnan()
    less_BT = (trainer_BT - engine_BT)[kept_BT]
    return (less_BT.exp() - 1 - less_BT).sum() / max(1, less_BT.numel())


def weights_of(trainer_BT: Tensor, engine_BT: Tensor, mask_BT: Tensor, rollout: RolloutConfig) -> Tensor:
    """The weight of each token's loss, or with a ratio of a whole answer one for each of its rows, as TRL has it: the
    trainer's probability over the engine's, up to the cap."""
    less_BT = (trainer_BT - engine_BT) * mask_BT
    if rollout.correction.startswith("sequence"):
        less_BT = less_BT.sum(1, keepdim=True)
    ratio_BT = less_BT.exp()
    if rollout.correction.endswith("truncate"):
        return ratio_BT.clamp(max=rollout.cap)
    return ratio_BT.masked_fill(ratio_BT > rollout.cap, 0.0)


def mismatch_of(trainer_BT: Tensor, engine_BT: Tensor, mask_BT: Tensor, weights_BT: Tensor) -> dict[str, float]:
    """The measures of how far an engine is from the trainer, over the tokens of answers."""
    kept_BT = mask_BT.bool()
    far_N = (trainer_BT - engine_BT)[kept_BT].abs()
    return {
        MEAN: float(far_N.mean()),
        LARGEST: float(far_N.max()),
        KL: float(kl_of(trainer_BT, engine_BT, mask_BT)),
        RATIO: float(weights_BT.expand_as(mask_BT)[kept_BT].mean()),
    }


def check_mismatch(difference: float, rollout: RolloutConfig, step: int, section: str) -> None:
    """Raises TrainingError for a mean difference beyond the limit."""
    if rollout.max_mismatch is not None and difference > rollout.max_mismatch:
        raise TrainingError(
            f"Step {step}: log-probabilities of {rollout.engine} differ from the trainer's by {difference:.3g} nats a "
            f"token, more than {section}.rollout.max_mismatch, {rollout.max_mismatch:g}.",
            f"Choose the engine transformers, or raise {section}.rollout.max_mismatch if the course of rewards is "
            "sound. The correction leaves out what it can't correct.",
        )


class Cost:
    """What the rollouts of an engine took."""

    def __init__(self, engine: str) -> None:
        self.engine, self.seconds, self.tokens = engine, 0.0, 0

    def counted(self, sample: Callable[[], list[Sample]]) -> list[Sample]:
        """The samples of a call, which is timed."""
        began = time.perf_counter()
        samples = sample()
        self.seconds += time.perf_counter() - began
        self.tokens += sum(len(each.ids) for each in samples)
        return samples

    def facts(self) -> dict[str, Any]:
        """As `report_rollouts` tells them."""
        return {"rollout_engine": self.engine, "rollout_seconds": round(self.seconds, 2), "rollout_tokens": self.tokens}


def report_rollouts(facts: Mapping[str, Any], out: Output) -> None:
    """Tell how fast answers were sampled, and the share of the training that this took."""
    if seconds := facts.get("rollout_seconds"):
        rows = {
            "engine": facts["rollout_engine"],
            "tokens a second": f"{facts['rollout_tokens'] / seconds:,.0f}",
            "share of the training's time": f"{seconds / facts['training_seconds']:.0%}",
        }
        out.fact_table("Rollouts", [{"measure": name, "value": value} for name, value in rows.items()])
