"""The `kto` stage: learns from single answers that are desirable or not, by TRL's KTOTrainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.posttrain.config import PreferenceConfig
from tasks.posttrain.method import Method, TrainerParts
from tasks.posttrain.rows.form import Row
from tasks.posttrain.rows.labelled import LABELLED
from tasks.posttrain.rows.row_sources import Pairs
from tasks.posttrain.stage import posttrain
from tasks.stage.output import Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import Trainer


class KtoConfig(PreferenceConfig):
    """The loss of a single answer. The stage's starting model is the reference."""

    learning_rate: float = Field(1e-4, gt=0, le=1000, description="peak (at most a tenth of supervised fine-tuning's)")
    beta: float = Field(0.1, gt=0, description="strength of the penalty for moving away from the reference model")
    loss: Literal["kto", "apo_zero"] = Field(
        "kto",
        description="loss of an answer. kto: against a reference point, the divergence from the reference model "
        "(Ethayarajh et al. 2024). apo_zero: without one (D'Oosterlinck et al. 2024)",
    )
    desirable_weight: float = Field(1.0, gt=0, description="weight of the loss of desirable answers")
    undesirable_weight: float = Field(
        1.0, gt=0, description="the same for others (the paper keeps the ratio of the summed weights between 1 and 4/3)"
    )

    @model_validator(mode="after")
    def _others_are_in_the_batch(self) -> Self:
        if self.loss == "kto" and self.global_batch == 1:
            raise ValueError("the loss kto compares the rows of a batch: raise global_batch, or set loss to apo_zero")
        return self


def _make_trainer(parts: TrainerParts[KtoConfig]) -> Trainer:
    from trl import KTOConfig
    from trl.trainer.utils import disable_dropout_in_model

    from models.pretrained import context_of
    from tasks.posttrain.arguments import arguments_of
    from tasks.posttrain.preference.labelled import LabelledMeans

    config, settings = parts.config, {}
    if config.adapter is not None:
        disable_dropout_in_model(parts.common["model"])
        settings["disable_dropout"] = False  # True would disable the adapter's dropout too
    arguments = arguments_of(
        KTOConfig,
        parts.arguments,
        **settings,
        loss_type="apo_zero_unpaired",  # the only one for which TRL doesn't pair answers with other prompts
        precompute_ref_log_probs=True,
        beta=config.beta,
        desirable_weight=config.desirable_weight,
        undesirable_weight=config.undesirable_weight,
        max_length=config.max_length or context_of(parts.common["model"].config),  # for mismatched answers: rows fit
    )
    trainer: Trainer = LabelledMeans(
        args=arguments, global_batch=config.global_batch, divergence=config.loss == "kto", **parts.common
    )
    return trainer


def _check_rows(config: KtoConfig, train: Sequence[Row], held_out: Sequence[Row]) -> None:
    desirable = sum(row["label"] for row in train)
    if desirable in (0, len(train)):
        raise ConfigError(
            f"{desirable:,} of {len(train):,} training answers are labelled as desirable, but kto needs both kinds.",
            "Add answers of the other kind, or train on good answers only with `sft`.",
        )


KTO = Method(
    name="kto",
    config=KtoConfig,
    pairs="labelled",
    instead="preferences",
    rows=LABELLED,
    make_trainer=_make_trainer,
    loss_unit="a row",
    measures={
        "kl": "divergence",
        "rewards/chosen": "desirable_reward",
        "rewards/rejected": "undesirable_reward",
        "logps/chosen": "desirable_log_probability",
        "logps/rejected": "undesirable_log_probability",
    },
    check_rows=_check_rows,
    summary=("validation_desirable_reward", "validation_undesirable_reward"),
)


@KTO.stage(version=3)
def kto(config: KtoConfig, model: Artifact, labelled: Pairs, out: Output) -> None:
    """Kahneman-Tversky optimisation (Ethayarajh et al. 2024) on answers that are labelled as desirable or not, or on
    both answers of each preference if a profile has no labelled rows.

    Reads model/ and rows. Writes model/ in the same format, log.jsonl and loss.png. Killed at any instant, it resumes
    from its last checkpoint, bit for bit on a CPU.
    """
    posttrain(KTO, config, model, labelled, out)
