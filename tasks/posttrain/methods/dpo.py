"""The `dpo` stage: the tuned model learns which of two answers is preferred, by TRL's DPOTrainer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from storage.artifact import Artifact
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.stage import posttrain
from tasks.stage import stage
from tasks.stage.output import Output


class DpoConfig(PosttrainConfig):
    """The preference loss; the model that the stage begins with is the reference."""

    learning_rate: float = Field(1e-4, gt=0, description="peak; a tenth of supervised fine-tuning's, or less")
    beta: float = Field(0.1, gt=0, description="how dear it is to move away from the reference")
    loss: Literal["sigmoid", "ipo"] = Field("sigmoid", description="DPO's own loss, or IPO (Azar et al. 2023)")


@stage(version=1, runtime=("compute", "training", "posttrain"))
def dpo(config: DpoConfig, model: Artifact, preferences: Artifact, out: Output) -> None:
    """Direct preference optimisation (Rafailov et al. 2023) on pairs of a preferred and a rejected answer.

    Reads model/ and pairs; writes model/ in the same form, log.jsonl and loss.png. Killed at any instant it goes on
    from its last checkpoint, bit for bit on a CPU.
    """
    posttrain("dpo", config, model, preferences, out)
