"""The `reward` stage: trains a judge of answers on preferences, by TRL's RewardTrainer, beside the chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from storage.artifact import Artifact
from tasks.posttrain.config import PreferenceConfig
from tasks.posttrain.method import Method, TrainerParts
from tasks.posttrain.reward_model.calibration import report_judge
from tasks.posttrain.rows.preference import JUDGED
from tasks.posttrain.rows.row_sources import Pairs
from tasks.posttrain.stage import posttrain
from tasks.stage.output import Output

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel, Trainer

    from tasks.posttrain.method import Trained


class RewardConfig(PreferenceConfig):
    """The loss of Bradley and Terry. The judge starts as the model of the link before it, with a new head."""

    learning_rate: float = Field(1e-4, gt=0, le=1000, description="peak (at most a tenth of supervised fine-tuning's)")
    center: float | None = Field(
        0.01,
        gt=0,
        description="coefficient of a penalty that keeps the rewards of a pair around 0 (Eisenstein et al. 2023). "
        "null: none",
    )

    @model_validator(mode="after")
    def _is_trained_whole(self) -> Self:
        if self.adapter is not None:
            raise ValueError("reward trains all weights: leave adapter out")
        return self


def _make_trainer(parts: TrainerParts[RewardConfig]) -> Trainer:
    from trl import RewardConfig as Arguments
    from trl import RewardTrainer

    from tasks.posttrain.arguments import arguments_of
    from tasks.posttrain.token_means import ExactMeans

    class PairMeans(ExactMeans, RewardTrainer):
        means_over: ClassVar = {"loss": "pairs"}

        def weigh(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            ids = inputs["input_ids"]  # the rows of all chosen answers, then those of all rejected ones
            return {"pairs": ids.new_tensor(len(ids) // 2)}

    settings = {"center_rewards_coefficient": parts.config.center, "max_length": None}  # rows are known to fit
    trainer: Trainer = PairMeans(args=arguments_of(Arguments, parts.arguments, **settings), **parts.common)
    return trainer


def _load(folder: Path, config: RewardConfig, divided: bool) -> PreTrainedModel:
    from tasks.posttrain.reward_model.model import load_classifier

    return load_classifier(folder, config.seed, read=not divided)


def _conclude(trained: Trained) -> dict[str, Any]:
    from tasks.posttrain.reward_model.measure import measure_judge

    return measure_judge(trained.folder, trained.train, trained.held_out, trained.device)


REWARD = Method(
    name="reward",
    config=RewardConfig,
    pairs="preferences",
    rows=JUDGED,
    make_trainer=_make_trainer,
    loss_unit="nats a pair",
    measures={"accuracy": "preference_accuracy", "margin": "reward_margin", "mean_reward": "mean_reward"},
    summary=("held_out_accuracy",),
    load=_load,
    conclude=_conclude,
    report=report_judge,
)


@REWARD.stage(version=3)
def reward(config: RewardConfig, model: Artifact, preferences: Pairs, out: Output) -> None:
    """A reward model (Stiennon et al. 2020, Ouyang et al. 2022) with the loss −log σ(r_chosen − r_rejected) of Bradley
    and Terry (1952), averaged over pairs.

    Reads model/ and pairs. Writes model/, a sequence classifier of transformers with one label, log.jsonl and loss.png.
    The mean reward of training answers is in its config.json, and is subtracted when it judges. Killed at any instant,
    it resumes from its last checkpoint, bit for bit on a CPU.
    """
    posttrain(REWARD, config, model, preferences, out)
