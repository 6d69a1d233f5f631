"""The `cpo` stage: preferences without a reference model, by the loss of CPO or of SimPO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

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

GAMMA = 0.5


class CpoConfig(PreferenceConfig):
    """A loss of the answers' log-probabilities only."""

    learning_rate: float = Field(1e-4, gt=0, le=1000, description="peak (at most a tenth of supervised fine-tuning's)")
    loss: Literal["sigmoid", "simpo"] = Field(
        "sigmoid",
        description="loss of a pair. sigmoid: CPO's own (Xu et al. 2024). simpo: on log-probabilities per token, with "
        "a margin (Meng et al. 2024)",
    )
    beta: float = Field(0.1, gt=0, description="scale of log-probabilities (SimPO uses 2 or more)")
    nll_weight: float | None = Field(
        None, ge=0, description="weight of the likelihood of preferred answers (default: 1, and 0 with simpo)"
    )
    gamma: float | None = Field(
        None, ge=0, description=f"margin between the two answers of a pair, for simpo (default: {GAMMA})"
    )

    @model_validator(mode="after")
    def _margin_is_of_simpo(self) -> Self:
        if self.gamma is not None and self.loss != "simpo":
            raise ValueError(f"gamma belongs to the loss simpo: leave it out with {self.loss}")
        return self

    @property
    def likelihood(self) -> float:
        """The weight of the likelihood."""
        return float(self.loss == "sigmoid") if self.nll_weight is None else self.nll_weight


def _make_trainer(parts: TrainerParts[CpoConfig]) -> Trainer:
    from tasks.posttrain.preference.losses import Answers, cpo_losses, simpo_losses
    from tasks.posttrain.preference.pairs import PairsAlone, pair_arguments

    config = parts.config
    gamma = GAMMA if config.gamma is None else config.gamma

    class Cpo(PairsAlone):
        def pair_losses(self, chosen: Answers, rejected: Answers) -> tuple[Tensor, dict[str, Tensor]]:
            if config.loss == "simpo":
                losses = simpo_losses(chosen, rejected, config.beta, gamma, config.likelihood)
                scores = chosen.means, rejected.means
            else:
                losses = cpo_losses(chosen, rejected, config.beta, config.likelihood)
                scores = chosen.sums, rejected.sums
            rewards = {"rewards/chosen": config.beta * scores[0], "rewards/rejected": config.beta * scores[1]}
            return losses, {**rewards, "nll_loss": -chosen.means}

    trainer: Trainer = Cpo(args=pair_arguments(parts), **parts.common)
    return trainer


CPO = Method(
    name="cpo",
    config=CpoConfig,
    pairs="preferences",
    rows=PREFERENCE,
    make_trainer=_make_trainer,
    shares_rows=True,
    loss_unit="nats a pair",
    measures={
        "mean_token_accuracy": "token_accuracy",
        "nll_loss": "chosen_loss",
        "rewards/accuracies": "preference_accuracy",
        "rewards/margins": "reward_margin",
        "rewards/chosen": "chosen_reward",
        "rewards/rejected": "rejected_reward",
        "logps/chosen": "chosen_log_probability",
        "logps/rejected": "rejected_log_probability",
    },
    summary=("validation_preference_accuracy",),
)


@CPO.stage(version=3)
def cpo(config: CpoConfig, model: Artifact, preferences: Pairs, out: Output) -> None:
    """Contrastive preference optimisation (Xu et al. 2024), or SimPO (Meng et al. 2024), on pairs of a preferred and a
    rejected answer. Neither needs a reference model.

    Reads model/ and pairs. Writes model/ in the same format, log.jsonl and loss.png. Killed at any instant, it resumes
    from its last checkpoint, bit for bit on a CPU.
    """
    posttrain(CPO, config, model, preferences, out)
