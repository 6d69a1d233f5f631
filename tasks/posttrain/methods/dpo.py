"""The `dpo` stage: the fine-tuned model learns which of two answers is preferred, by TRL's DPOTrainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from storage.artifact import Artifact
from tasks.posttrain.config import PreferenceConfig
from tasks.posttrain.method import Method, TrainerParts
from tasks.posttrain.reference.config import ReferenceConfig
from tasks.posttrain.reference.stage import reference
from tasks.posttrain.reference.table import FILE
from tasks.posttrain.rows.preference import PREFERENCE
from tasks.posttrain.rows.row_sources import Pairs
from tasks.posttrain.stage import posttrain
from tasks.stage.output import Output

if TYPE_CHECKING:
    from transformers import Trainer


Loss = Literal[
    "sigmoid", "sigmoid_norm", "hinge", "ipo", "robust", "exo_pair", "nca_pair", "sppo_hard", "apo_zero", "apo_down"
]
SMOOTHED = ("robust", "exo_pair")


class DpoConfig(PreferenceConfig):
    """The preference loss. The stage's starting model is the reference."""

    learning_rate: float = Field(1e-4, gt=0, le=1000, description="peak (at most a tenth of supervised fine-tuning's)")
    beta: float = Field(0.1, gt=0, description="strength of the penalty for moving away from the reference model")
    loss: Loss = Field(
        "sigmoid",
        description="loss of a pair. sigmoid: DPO's own (Rafailov et al. 2023). sigmoid_norm: the same on log-ratios "
        "divided by the answer's tokens (Lambert et al. 2024, Tülu 3). hinge: SLiC's (Zhao et al. 2023, Liu et al. "
        "2023). ipo: Azar et al. 2023, per token. robust: for labels that are partly wrong (Chowdhury et al. 2024). "
        "exo_pair: Ji et al. 2024. nca_pair: Chen et al. 2024. sppo_hard: Wu et al. 2024. apo_zero, apo_down: for "
        "preferred answers that are better, or worse, than the model's own (D'Oosterlinck et al. 2024)",
    )
    label_smoothing: float = Field(
        0.0,
        ge=0,
        lt=0.5,
        exclude_if=lambda share: share == 0,
        description="share of pairs assumed to be the wrong way round, for the losses robust and exo_pair",
    )

    @model_validator(mode="after")
    def _smooths_what_can_be(self) -> Self:
        if self.loss in SMOOTHED and not self.label_smoothing:
            usual = {"robust": "0.1", "exo_pair": "0.001"}[self.loss]
            raise ValueError(f"the loss {self.loss} needs a label_smoothing above 0, such as {usual}")
        if self.loss not in SMOOTHED and self.label_smoothing:
            raise ValueError(f"label_smoothing belongs to {' and '.join(SMOOTHED)}: leave it out with {self.loss}")
        return self


def _make_trainer(parts: TrainerParts[DpoConfig]) -> Trainer:
    from tasks.posttrain.preference.pairs import PairMeans, pair_arguments

    config = parts.config
    settings = {"beta": config.beta, "loss_type": [config.loss], "label_smoothing": config.label_smoothing}
    arguments = pair_arguments(parts, **settings)
    trainer: Trainer = PairMeans(args=arguments, **parts.common)
    return trainer


DPO = Method(
    name="dpo",
    config=DpoConfig,
    pairs="preferences",
    rows=PREFERENCE,
    make_trainer=_make_trainer,
    shares_rows=True,
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


@DPO.stage(version=8)
def dpo(config: DpoConfig, model: Artifact, preferences: Pairs, out: Output) -> None:
    """Direct preference optimisation (Rafailov et al. 2023) on pairs of a preferred and a rejected answer.

    Reads model/ and pairs. Writes model/ in the same format, log.jsonl and loss.png. The answers' log-probabilities
    under the starting model are an artifact of their own, shared by all losses and learning rates. Killed at any
    instant, it resumes from its last checkpoint, bit for bit on a CPU.
    """
    DPO.check_runtime(config, out.runtime)
    known = out.obtain(reference, ReferenceConfig.of(config), model, preferences)
    posttrain(DPO, config, model, preferences, out, reference=known.path / FILE)
