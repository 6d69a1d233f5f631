"""The settings of rejection sampling."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.base import BaseConfig
from tasks.endpoint.config import EndpointConfig
from tasks.posttrain.rewards.config import ExactReward, Reward, check_names, check_none_of_environment
from tasks.posttrain.rollouts.config import EngineConfig
from tasks.stage.config import StageConfig


def _exact() -> list[Reward]:
    return [ExactReward()]


class BestOfNConfig(StageConfig):
    """The best of several answers to a prompt becomes an instruction, and the best and the worst become a pair. With
    `n: 1` and no rewards, every answer of a teacher becomes an instruction."""

    rewards: list[Reward] = Field(
        default_factory=_exact,
        description="rewards of an answer, summed by weight, as those of `grpo`. The last answer of a conversation is "
        "its reference ([]: none, with n 1)",
    )
    n: int = Field(8, ge=1, description="answers to a prompt")
    threshold: float | None = Field(
        1.0, description="lowest reward of an answer that becomes an instruction (null: the best does, whatever it has)"
    )
    gap: float = Field(0.5, gt=0, description="smallest difference of the rewards of a pair's two answers")
    prompts: int | None = Field(None, ge=1, description="number of prompts to draw from the instructions (null: all)")
    validation_share: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="share of conversations to leave out, with all that have their prompts: those that `sft` and other "
        "methods hold out, by hash of their id",
    )
    temperature: float = Field(1.0, gt=0, description="temperature of the samples")
    max_new_tokens: int = Field(64, ge=1, description="maximum tokens of an answer. One that is cut there isn't chosen")
    max_dropped_share: float = Field(0.9, ge=0, le=1, description="largest share of prompts that give nothing")
    seed: int = Field(0, ge=0, description="seed of the draw of prompts and of the samples")
    rollout: EngineConfig = Field(
        default_factory=EngineConfig,
        exclude_if=lambda rollout: rollout == EngineConfig(),  # so that keys from before this field stay valid
        description="what samples the answers of the model or of a teacher",
    )
    teacher: BaseConfig | None = Field(
        None,
        description="a model outside the chain that answers, with whatever vocabulary (null: the model of the link "
        "before)",
    )
    endpoint: EndpointConfig | None = Field(
        None, description="an OpenAI-compatible endpoint that answers (null: none). All prompts are sent there"
    )

    @property
    def asks_model(self) -> bool:
        """Whether the chain's model answers."""
        return self.endpoint is None and self.teacher is None

    @property
    def answer_tokens(self) -> int:
        """The longest answer of the chain's model, which leaves room for a prompt."""
        return self.max_new_tokens if self.asks_model else 0

    @property
    def judged(self) -> bool:
        """Whether a reward model is one of the rewards."""
        return any(reward.kind == "model" for reward in self.rewards)

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        check_names(self.rewards)
        check_none_of_environment(self.rewards)
        if self.endpoint is not None and self.teacher is not None:
            raise ValueError("a teacher and an endpoint would both answer: leave one out")
        if self.endpoint is not None and self.rollout != EngineConfig():
            raise ValueError("an endpoint answers, and rollout is for a model that this machine runs: leave one out")
        if not self.rewards and self.n > 1:
            raise ValueError(f"n is {self.n}, but no reward says which of the answers is best: set n to 1, or rewards")
        if not self.rewards and self.asks_model:
            raise ValueError("without rewards the model would learn its own samples: set rewards, teacher or endpoint")
        return self
