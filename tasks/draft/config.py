"""The settings of the draft model: where it comes from, and how it learns to guess."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.base import BaseConfig
from tasks.posttrain.methods.distill import DistillConfig
from tasks.posttrain.prune import PruneConfig
from tasks.stage.config import StageConfig
from tasks.training.chain import BASE


class DraftConfig(StageConfig):
    """A much smaller model with the tokenizer of the released one: that one pruned, or another, then distilled."""

    base: BaseConfig | None = Field(None, description="a model to start from (default: the released one)")
    prune: PruneConfig | None = Field(None, description="what to cut from it (null: nothing)")
    distill: DistillConfig | None = Field(
        default_factory=DistillConfig,
        description="how it learns the distributions of the released model, its teacher (null: not at all)",
    )

    @model_validator(mode="after")
    def _is_another_model(self) -> Self:
        if self.base is None and self.prune is None:
            raise ValueError("the draft would be the released model itself: set prune, or base")
        distill = self.distill
        if distill and (distill.teacher != BASE or distill.teacher_from or distill.endpoint):
            raise ValueError("distill.teacher can't be chosen here: a draft learns from the released model")
        return self
