"""The `grpo` stage: a model learns from the rewards of its own answers, by TRL's GRPOTrainer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from storage.artifact import Artifact
from tasks.posttrain.check import check_engine_runtime
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.method import Method, TrainerParts
from tasks.posttrain.rewards.config import (
    DRAWN,
    OVERLONG,
    ExactReward,
    OverlongConfig,
    Reward,
    check_names,
    check_none_of_environment,
)
from tasks.posttrain.rewards.environments.config import EnvironmentConfig
from tasks.posttrain.rewards.environments.open import check_environment_here, environment_fingerprints, tools_of
from tasks.posttrain.rewards.outside import check_rows, open_scorer
from tasks.posttrain.rewards.watch import check_dropout, check_watch, check_watched
from tasks.posttrain.rollouts.config import GrpoRolloutConfig, check_engine, check_engine_here
from tasks.posttrain.rollouts.mismatch import MEASURES
from tasks.posttrain.rows.form import Row
from tasks.posttrain.rows.prompt import PROMPT, prompts_with
from tasks.posttrain.stage import posttrain
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import Trainer


Loss = Literal["dapo", "grpo", "dr_grpo", "gspo", "rloo", "cispo"]
CLIPS = 0.2, 0.28  # below and above 1: clip-higher (Yu et al. 2025)
CLIPS_OF = {"gspo": (3e-4, 4e-4)}  # of a ratio per token over a whole answer (Zheng et al. 2025, §5.1)
UNSCALED = ("dr_grpo", "rloo")


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
    loss: Loss = Field(
        "dapo",
        description="what is learned from an answer's advantage. dapo: mean over all tokens of a batch (Yu et al. "
        "2025). grpo: mean over each answer, then over the answers (Shao et al. 2024). dr_grpo: sum over each answer "
        "divided by max_new_tokens, then the mean (Liu et al. 2025). gspo: as grpo, with one ratio for an answer "
        "(Zheng et al. 2025). rloo: sum over each answer, then the mean, and advantages over the group's other answers "
        "(Ahmadian et al. 2024). cispo: as dapo, with the ratio as a bounded weight (MiniMax 2025)",
    )
    scale: Literal["group", "batch", "none"] | None = Field(
        None,
        description="divisor of a reward minus the mean of its group: the standard deviation of the group or the "
        "batch, or none (default: none for dr_grpo and rloo, group for the others)",
    )
    updates: int = Field(1, ge=1, description="steps that learn from a batch of answers, each from all of it")
    clip_low: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="with several updates, how far a probability's ratio may fall below 1 and its answer still be made "
        "less likely (default: 0.2, and 3e-4 for gspo)",
    )
    clip_high: float | None = Field(
        None, gt=0, description="likewise, how far it may rise above 1 (default: 0.28, and 4e-4 for gspo)"
    )
    mask_cut: bool = Field(
        False, description="leave answers that max_new_tokens cut out of the loss, in its sum and in its divisor"
    )
    overlong: OverlongConfig | None = Field(
        None, description="a penalty for answers that come close to max_new_tokens (null: none)"
    )
    refills: int = Field(
        0,
        ge=0,
        description="how often a step may replace groups whose answers all earn the same, by groups of further prompts "
        "(dynamic sampling, Yu et al. 2025)",
    )
    beta: float = Field(0.04, ge=0, description="strength of the penalty for the KL divergence from the reference")
    rollout: GrpoRolloutConfig = Field(
        default_factory=GrpoRolloutConfig,
        exclude_if=lambda rollout: rollout == GrpoRolloutConfig(),  # so that keys from before this field stay valid
        description="what samples the answers",
    )
    environment: EnvironmentConfig | None = Field(
        None,
        exclude_if=lambda environment: environment is None,
        description="what replies to answers, so that conversations of several turns are learned from (null: nothing). "
        "max_new_tokens are then those of a conversation, with the replies",
    )
    max_kl: float | None = Field(
        1.0, gt=0, description="KL divergence from the reference, in nats a token, beyond which a run ends (null: none)"
    )
    max_drop: float | None = Field(
        0.3, gt=0, description="fall of the held-out reward below its best, beyond which the run ends (null: none)"
    )

    @property
    def generated_tokens(self) -> int:
        # The last answer of a conversation is drawn at its whole length, and cut afterwards
        return self.max_new_tokens * (1 if self.environment is None else 2)

    @property
    def generated_text(self) -> str:
        return f"{self.max_new_tokens:,}" + ("" if self.environment is None else ", and twice that with an environment")

    @property
    def judged(self) -> bool:
        return any(reward.kind == "model" for reward in self.rewards)

    @property
    def frozen_models(self) -> int:
        return int(self.beta > 0 and self.adapter is None) + self.judged

    @property
    def divisor(self) -> str:
        """What advantages are divided by: `scale`, or the default of the loss."""
        return self.scale or ("none" if self.loss in UNSCALED else "group")

    @property
    def clips(self) -> tuple[float, float]:
        """How far a ratio may leave 1, downwards and upwards."""
        low, high = CLIPS_OF.get(self.loss, CLIPS)
        return self.clip_low or low, self.clip_high or high

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        check_names(self.rewards)
        check_dropout(self.adapter)
        if self.updates == 1 and (self.clip_low is not None or self.clip_high is not None):
            raise ValueError("clip_low and clip_high need several updates: in the first, all ratios are 1")
        if self.loss == "cispo" and self.clip_low is not None:
            raise ValueError("clip_low doesn't apply to cispo, which bounds ratios from above only: leave it out")
        if self.loss == "rloo" and self.divisor != "none":
            raise ValueError(
                f"scale {self.divisor} doesn't apply to rloo, whose advantages aren't divided: leave it out"
            )
        if self.overlong is not None and OVERLONG in (reward.title for reward in self.rewards):
            raise ValueError(f"a reward is called {OVERLONG}, as the penalty of long answers: give it another name")
        if self.overlong is not None and self.overlong.start >= self.max_new_tokens:
            raise ValueError("overlong.start must be below max_new_tokens, where answers are cut")
        check_engine(self, self.rollout)
        if self.environment is None:
            check_none_of_environment(self.rewards, "the reward environment needs one")
        elif self.environment.kind != "own":
            check_none_of_environment(self.rewards, f"the environment {self.environment.kind} gives no rewards")
        check_watch(self)
        if not self.beta and self.max_kl is not None:
            raise ValueError("max_kl needs a reference, and beta 0 has none: set max_kl to null, or raise beta")
        return self


def _make_trainer(parts: TrainerParts[GrpoConfig]) -> Trainer:
    from trl import GRPOConfig

    from models.runtimes.greedy import ends_of
    from tasks.posttrain.arguments import arguments_of
    from tasks.posttrain.reward_model.model import Judge
    from tasks.posttrain.rewards.environments.play import player_of
    from tasks.posttrain.rewards.score import Scorer
    from tasks.posttrain.rewards.trainer import LOSSES, WatchedGrpo
    from tasks.posttrain.rollouts.open import open_engine, vllm_arguments

    config, given = parts.config, dict(parts.arguments)
    given["per_device_train_batch_size"] *= config.group  # TRL counts answers
    for name in ("max_steps", "warmup_steps", "eval_steps"):  # they count batches, each of which takes several steps
        given[name] *= config.updates
    loss, (low, high) = LOSSES[config.loss], config.clips
    penalty = [] if config.overlong is None else [config.overlong.penalty]
    arguments = arguments_of(
        GRPOConfig,
        given,
        num_generations=config.group,
        num_generations_eval=1,
        max_completion_length=config.max_new_tokens,
        temperature=config.temperature,
        loss_type=loss.of_trl,
        importance_sampling_level=loss.ratio,
        num_iterations=config.updates,
        epsilon=low,
        epsilon_high=high + loss.clipped_around,
        mask_truncated_completions=config.mask_cut,
        scale_rewards=config.divisor,
        beta=config.beta,
        reward_weights=[*(reward.weight for reward in config.rewards), *penalty],
        shuffle_dataset=False,
        disable_dropout=True,
        **vllm_arguments(config.rollout),
    )
    scorer = Scorer(config.rewards)
    if not arguments.process_index:
        judge = Judge.load(parts.judge, arguments.device) if parts.judge else None
        scorer = open_scorer(config.rewards, judge, parts.digests, parts.runtime, parts.scratch)
    model, tokenizer = parts.common["model"], parts.common["processing_class"]
    ends = ends_of(model, tokenizer)
    engine = None
    if config.rollout.engine != "vllm":
        folder, learned = Path(model.name_or_path), arguments.per_device_train_batch_size
        asked = config.rollout, folder, tokenizer, ends, config.temperature
        engine = open_engine(*asked, learned=learned, threads=parts.runtime.rank_threads)
    player = None
    if config.environment is not None:
        longest = parts.max_length - config.generated_tokens
        player = player_of(config.environment, tokenizer, ends, config.max_new_tokens, parts.digests, longest)
    trainer: Trainer = WatchedGrpo(config, scorer, parts.load_model, engine, player, args=arguments, **parts.common)
    return trainer


def _check_rows(config: GrpoConfig, train: Sequence[Row], held_out: Sequence[Row]) -> None:
    check_watched(config, len(train), len(held_out), "grpo")
    check_rows(config.rewards, train, held_out, "grpo")


def _check_more(config: GrpoConfig, runtime: Runtime, here: bool) -> None:
    check_engine_runtime("grpo", config.rollout, runtime)
    if here:
        check_engine_here("grpo", config.rollout)
        if config.environment is not None:
            check_environment_here(config.environment)


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
        "clip_ratio/low_mean": "ratios_clipped_low",
        "clip_ratio/high_mean": "ratios_clipped_high",
        "cispo_clip_ratio": "ratios_clipped_high",
        "groups_refilled": "groups_refilled",
        f"rewards/{OVERLONG}/mean": f"{OVERLONG}_reward",
        **MEASURES,
        "conversations/turns": "turns",
        "conversations/calls": "tool_calls",
        "conversations/calls_failed": "tool_calls_failed",
        "conversations/unfinished": "conversations_unfinished",
    },
    curve="reward",
    drawn=DRAWN,
    check_rows=_check_rows,
    rows_of=lambda config: prompts_with(tools_of(config.environment)),
    rewards_of=lambda config: config.rewards,
    facts=lambda trainer: trainer.facts(),
    check_more=_check_more,
    sources_of=lambda config: environment_fingerprints(config.environment),
    samples=True,
)


@GRPO.stage(version=5)
def grpo(config: GrpoConfig, model: Artifact, instructions: Artifact, judge: Artifact | None, out: Output) -> None:
    """Group relative policy optimisation (Shao et al. 2024): several answers are sampled for each prompt, and an
    answer's advantage is its reward minus the mean of its group.

    Reads model/, conversations, and the reward model if one of the rewards is its. Writes model/ in the same format,
    log.jsonl, reward.png and measures.png, and with an adapter adapter/. Samples depend only on the seed and the step:
    killed at any instant, it resumes from its last checkpoint, bit for bit on a CPU.
    """
    posttrain(GRPO, config, model, instructions, out, judge=judge)
