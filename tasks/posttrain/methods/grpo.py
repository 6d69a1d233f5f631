"""The `grpo` stage: a model learns from the rewards of its own answers, by TRL's GRPOTrainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from storage.artifact import Artifact
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.method import Method, TrainerParts
from tasks.posttrain.rewards.config import ExactReward, Reward, check_names
from tasks.posttrain.rewards.outside import check_rows, open_scorer
from tasks.posttrain.rewards.watch import check_watch, check_watched
from tasks.posttrain.rows.form import Row
from tasks.posttrain.rows.prompt import PROMPT
from tasks.posttrain.stage import posttrain
from tasks.stage.output import Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import Trainer


def _exact() -> list[Reward]:
    return [ExactReward()]


class GrpoConfig(PosttrainConfig):
    """Answers are sampled in groups, and each is compared with its group. The stage's starting model is the
    reference."""

    rewards: list[Reward] = Field(
        default_factory=_exact,
        min_length=1,
        description="rewards of an answer, summed by weight. The last answer of a conversation is its reference",
    )
    global_batch: int = Field(8, ge=1, description="prompts a step, over all micro-batches")
    group: int = Field(8, ge=2, description="answers sampled for each prompt, and compared with each other")
    max_new_tokens: int = Field(64, ge=1, description="maximum tokens of an answer, which is cut there")
    temperature: float = Field(1.0, gt=0, description="temperature of samples (held-out prompts are answered greedily)")
    learning_rate: float = Field(1e-5, gt=0, le=1000, description="peak, reached after the warmup")
    loss: Literal["grpo", "dr_grpo", "dapo"] = Field(
        "grpo",
        description="what token losses are averaged over. grpo: each answer, then the answers. dapo: all tokens of a "
        "batch. dr_grpo: max_new_tokens, so that long answers have more weight (Liu et al. 2025)",
    )
    scale: Literal["group", "batch", "none"] = Field(
        "group",
        description="divisor of a reward minus the mean of its group: the standard deviation of the group or the "
        "batch, or none (as Dr. GRPO, and as RLOO but for the factor (group − 1) / group)",
    )
    beta: float = Field(0.04, ge=0, description="strength of the penalty for the KL divergence from the reference")
    max_kl: float | None = Field(
        1.0, gt=0, description="KL divergence from the reference, in nats a token, beyond which a run ends (null: none)"
    )
    max_drop: float | None = Field(
        0.3, gt=0, description="fall of the held-out reward below its best, beyond which the run ends (null: none)"
    )

    @property
    def generated_tokens(self) -> int:
        return self.max_new_tokens

    @property
    def judged(self) -> bool:
        return any(reward.kind == "model" for reward in self.rewards)

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        check_names(self.rewards)
        if self.adapter is not None:
            raise ValueError("grpo trains all weights: leave adapter out")
        check_watch(self)
        if not self.beta and self.max_kl is not None:
            raise ValueError("max_kl needs a reference, and beta 0 has none: set max_kl to null, or raise beta")
        return self


def _make_trainer(parts: TrainerParts[GrpoConfig]) -> Trainer:
    from trl import GRPOConfig

    from tasks.posttrain.arguments import arguments_of
    from tasks.posttrain.reward_model.model import Judge
    from tasks.posttrain.rewards.trainer import WatchedGrpo

    config, given = parts.config, dict(parts.arguments)
    given["per_device_train_batch_size"] *= config.group  # TRL counts answers
    arguments = arguments_of(
        GRPOConfig,
        given,
        num_generations=config.group,
        num_generations_eval=1,
        max_completion_length=config.max_new_tokens,
        temperature=config.temperature,
        loss_type=config.loss,
        scale_rewards=config.scale,
        beta=config.beta,
        reward_weights=[reward.weight for reward in config.rewards],
        shuffle_dataset=False,
        disable_dropout=True,
    )
    device = parts.common["model"].device if arguments.use_cpu else "cuda"
    judge = Judge.load(parts.judge, device) if parts.judge else None
    scorer = open_scorer(config.rewards, judge, parts.digests, parts.runtime, parts.scratch)
    trainer: Trainer = WatchedGrpo(config, scorer, args=arguments, **parts.common)
    return trainer


def _check_rows(config: GrpoConfig, train: Sequence[Row], held_out: Sequence[Row]) -> None:
    check_watched(config, len(train), len(held_out), "grpo")
    check_rows(config.rewards, train, held_out, "grpo")


GRPO = Method(
    name="grpo",
    config=GrpoConfig,
    pairs="instructions",
    rows=PROMPT,
    make_trainer=_make_trainer,
    loss_unit="reward",
    measures={
        "reward": "reward",
        "reward_std": "reward_deviation",
        "frac_reward_zero_std": "groups_alike",
        "kl": "kl",
        "entropy": "entropy",
        "completions/mean_length": "answer_tokens",
        "completions/clipped_ratio": "answers_cut",
    },
    curve="reward",
    check_rows=_check_rows,
    rewards_of=lambda config: config.rewards,
    facts=lambda trainer: trainer.scorer.facts(),
    alone=True,
)


@GRPO.stage(version=3)
def grpo(config: GrpoConfig, model: Artifact, instructions: Artifact, judge: Artifact | None, out: Output) -> None:
    """Group relative policy optimisation (Shao et al. 2024): several answers are sampled for each prompt, and an
    answer's advantage is its reward minus the mean of its group.

    Reads model/, conversations, and the reward model if one of the rewards is its. Writes model/ in the same format,
    log.jsonl and reward.png. Samples depend only on the seed and the step: killed at any instant, it resumes from its
    last checkpoint, bit for bit on a CPU.
    """
    posttrain(GRPO, config, model, instructions, out, judge=judge)
