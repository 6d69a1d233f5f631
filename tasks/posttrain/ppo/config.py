"""The settings of PPO. No torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.rewards.config import ModelReward, Reward, check_names, check_none_of_environment
from tasks.posttrain.rewards.watch import check_dropout, check_watch
from tasks.posttrain.rollouts.config import RolloutConfig, check_engine


def _model() -> list[Reward]:
    return [ModelReward()]


class PpoConfig(PosttrainConfig):
    """Answers are sampled, and learned from in several steps. The stage's starting model is the reference, and the
    critic starts as the reward model."""

    rewards: list[Reward] = Field(
        default_factory=_model,
        min_length=1,
        exclude_if=lambda rewards: rewards == _model(),
        description="rewards of an answer, summed by weight. The last answer of a conversation is its reference",
    )
    global_batch: int = Field(16, ge=1, description="prompts of a rollout, each with one answer")
    passes: int = Field(4, ge=1, description="steps that learn from a rollout, each from all of it")
    max_new_tokens: int = Field(64, ge=1, description="maximum tokens of an answer, which is cut there")
    temperature: float = Field(1.0, gt=0, description="temperature of samples (held-out prompts are answered greedily)")
    learning_rate: float = Field(1e-5, gt=0, le=1000, description="peak after the warmup, of policy and critic")
    clip: float = Field(0.2, gt=0, lt=1, description="how far a probability's ratio may leave 1 and still be rewarded")
    value_clip: float = Field(0.2, gt=0, description="likewise, how far a value may leave that of the rollout")
    value_weight: float = Field(0.1, gt=0, description="factor of the critic's loss")
    discount: float = Field(1.0, gt=0, le=1, description="γ of generalised advantage estimation")
    decay: float = Field(0.95, ge=0, le=1, description="λ of generalised advantage estimation")
    kl: Literal["k1", "k3"] = Field(
        "k1", description="estimate of the KL divergence that is penalised at each token (Schulman 2020)"
    )
    beta: float = Field(0.05, ge=0, description="strength of that penalty (with target_kl, only its first value)")
    target_kl: float | None = Field(
        None, gt=0, description="nats an answer towards which beta is adapted (Ziegler et al. 2019). null: it is fixed"
    )
    horizon: int = Field(10_000, ge=1, description="answers over which beta is adapted")
    rollout: RolloutConfig = Field(
        default_factory=RolloutConfig,
        exclude_if=lambda rollout: rollout == RolloutConfig(),  # so that keys from before this field stay valid
        description="what samples the answers",
    )
    max_kl: float | None = Field(
        1.0, gt=0, description="KL divergence from the reference, in nats a token, beyond which a run ends (null: none)"
    )
    max_drop: float | None = Field(
        None, gt=0, description="fall of the held-out reward below its best, beyond which a run ends (null: none)"
    )

    @property
    def generated_tokens(self) -> int:
        return self.max_new_tokens

    @property
    def judged(self) -> bool:
        return True

    @property
    def frozen_models(self) -> int:
        return 1 + int(self.adapter is None)

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        check_dropout(self.adapter)
        check_names(self.rewards)
        check_none_of_environment(self.rewards)
        check_engine(self, self.rollout)
        check_watch(self)
        if self.target_kl is not None and not self.beta:
            raise ValueError("target_kl adapts beta by a factor, which can't change 0: raise beta")
        return self
