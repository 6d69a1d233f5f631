"""What a profile says of a post-training stage, whichever its loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.stage.config import StageConfig


class PosttrainConfig(StageConfig):
    """The optimizer and the data's limits; `sft` and `dpo` add their loss."""

    epochs: float = Field(1.0, gt=0, description="passes over the pairs")
    global_batch: int = Field(16, ge=1, description="pairs a step, over all processes and micro-batches")
    learning_rate: float = Field(1e-3, gt=0, description="peak, reached after the warmup; a cosine leads down to 0")
    warmup_share: float = Field(0.05, ge=0, lt=1, description="share of the steps that the rate rises")
    weight_decay: float = Field(0.0, ge=0, description="decoupled (AdamW), on matrices only")
    gradient_clip: float = Field(1.0, gt=0, description="largest global norm of the gradient")
    max_length: int | None = Field(None, ge=8, description="tokens of a rendered pair at the most; the model's context")
    max_dropped_share: float = Field(0.5, ge=0, le=1, description="of the pairs; when more are unusable, the run ends")
    validation_share: float = Field(0.05, ge=0, lt=1, description="share of pairs, by hash of their id, only measured")
    seed: int = Field(0, ge=0, description="of the order of the pairs")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 on a GPU that has it, float32 on a CPU"
    )
