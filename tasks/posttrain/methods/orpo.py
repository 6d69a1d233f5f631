"""The `orpo` stage: fine-tuning and preference learning in one, without a reference model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from storage.artifact import Artifact
from tasks.posttrain.config import PreferenceConfig
from tasks.posttrain.method import Method, TrainerParts
from tasks.posttrain.rows.preference import PREFERENCE
from tasks.posttrain.rows.row_sources import Pairs
from tasks.posttrain.stage import posttrain
from tasks.stage.output import Output

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import Trainer


class OrpoConfig(PreferenceConfig):
    """The likelihood of preferred answers, and their odds against rejected ones."""

    learning_rate: float = Field(5e-4, gt=0, le=1000, description="peak (between those of fine-tuning and DPO)")
    odds_weight: float = Field(0.1, gt=0, description="λ: weight of the odds ratio beside the likelihood")


def _make_trainer(parts: TrainerParts[OrpoConfig]) -> Trainer:
    from tasks.posttrain.preference.losses import Answers, log_odds, orpo_losses
    from tasks.posttrain.preference.pairs import PairsAlone, pair_arguments

    weight = parts.config.odds_weight

    class Orpo(PairsAlone):
        def pair_losses(self, chosen: Answers, rejected: Answers) -> tuple[Tensor, dict[str, Tensor]]:
            rewards = {"rewards/chosen": weight * chosen.means, "rewards/rejected": weight * rejected.means}
            likelihood = {
                "nll_loss": -chosen.means,
                "log_odds_chosen": log_odds(chosen.means) - log_odds(rejected.means),
            }
            return orpo_losses(chosen, rejected, weight), rewards | likelihood

    trainer: Trainer = Orpo(args=pair_arguments(parts), **parts.common)
    return trainer


ORPO = Method(
    name="orpo",
    config=OrpoConfig,
    pairs="preferences",
    rows=PREFERENCE,
    make_trainer=_make_trainer,
    shares_rows=True,
    loss_unit="nats",
    measures={
        "mean_token_accuracy": "token_accuracy",
        "nll_loss": "chosen_loss",
        "log_odds_chosen": "log_odds_ratio",
        "rewards/accuracies": "preference_accuracy",
        "logps/chosen": "chosen_log_probability",
        "logps/rejected": "rejected_log_probability",
    },
    summary=("validation_preference_accuracy",),
)


@ORPO.stage(version=3)
def orpo(config: OrpoConfig, model: Artifact, preferences: Pairs, out: Output) -> None:
    """Odds ratio preference optimisation (Hong et al. 2024): fine-tuning on preferred answers, with a term for the
    odds of these against rejected ones. It needs no reference model, and can start from a base model.

    Reads model/ and pairs. Writes model/ in the same format, log.jsonl and loss.png. Killed at any instant, it resumes
    from its last checkpoint, bit for bit on a CPU.
    """
    posttrain(ORPO, config, model, preferences, out)
