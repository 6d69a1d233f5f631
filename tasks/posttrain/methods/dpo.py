"""The `dpo` stage: the fine-tuned model learns which of two answers is preferred, by TRL's DPOTrainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from storage.artifact import Artifact
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.method import Method, TrainerParts
from tasks.posttrain.rows.preference import PREFERENCE
from tasks.posttrain.stage import posttrain
from tasks.stage.output import Output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import Trainer


class DpoConfig(PosttrainConfig):
    """The preference loss; the model that the stage starts from is the reference."""

    learning_rate: float = Field(1e-4, gt=0, description="peak; a tenth of supervised fine-tuning's, or less")
    beta: float = Field(0.1, gt=0, description="strength of the penalty for moving away from the reference model")
    loss: Literal["sigmoid", "ipo"] = Field("sigmoid", description="DPO's own loss, or IPO (Azar et al. 2023)")


def _make_trainer(parts: TrainerParts[DpoConfig]) -> Trainer:
    from trl import DPOConfig, DPOTrainer
    from trl.trainer.utils import disable_dropout_in_model

    from tasks.posttrain.means import ExactMeans

    class PairMeans(ExactMeans, DPOTrainer):
        means_over: ClassVar = {
            "loss": "pairs",
            "mean_token_accuracy": "chosen tokens",
            "logits/chosen": "chosen tokens",
            "logits/rejected": "rejected tokens",
            "entropy": "tokens",
        }

        def weigh(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            answers = inputs["completion_mask"][:, 1:]  # those of all chosen answers, then those of all rejected ones
            chosen, rejected = (mask.sum() for mask in answers.chunk(2))
            pairs = chosen.new_tensor(len(answers) // 2)
            return {
                "pairs": pairs, "chosen tokens": chosen, "rejected tokens": rejected, "tokens": chosen + rejected
            }  # fmt: skip

    settings = {"beta": parts.config.beta, "loss_type": [parts.config.loss]}
    if parts.config.adapter is None:
        # Loaded before the arguments exist: with them, transformers would partition it for ZeRO 3 while loading
        reference = parts.load_model()
    else:
        reference = None  # the model with its adapter disabled
        disable_dropout_in_model(parts.common["model"])
        settings["disable_dropout"] = False  # it would be the adapter's too
    arguments = DPOConfig(**parts.arguments, **settings, max_length=None)  # rows are known to fit
    trainer: Trainer = PairMeans(ref_model=reference, args=arguments, **parts.common)
    return trainer


DPO = Method(
    name="dpo",
    config=DpoConfig,
    pairs="preferences",
    rows=PREFERENCE,
    make_trainer=_make_trainer,
    loss_unit="nats a pair",
    measures={
        "mean_token_accuracy": "token_accuracy",
        "rewards/accuracies": "preference_accuracy",
        "rewards/margins": "reward_margin",
        "rewards/chosen": "chosen_reward",
        "rewards/rejected": "rejected_reward",
        "logps/chosen": "chosen_log_probability",
        "logps/rejected": "rejected_log_probability",
    },
    summary=("validation_preference_accuracy",),
)


@DPO.stage(version=5)
def dpo(config: DpoConfig, model: Artifact, preferences: Artifact, out: Output) -> None:
    """Direct preference optimisation (Rafailov et al. 2023) on pairs of a preferred and a rejected answer.

    Reads model/ and pairs; writes model/ in the same format, log.jsonl and loss.png. Killed at any instant, it resumes
    from its last checkpoint, bit for bit on a CPU.
    """
    posttrain(DPO, config, model, preferences, out)
