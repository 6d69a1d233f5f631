"""What a profile says of pretraining: the model, how much of what, and the optimizer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from models.config import ModelConfig
from models.presets import ModelShape, chinchilla_tokens
from storage.errors import ConfigError
from tasks.config import StageConfig


class PretrainConfig(StageConfig):
    """The length is given as steps or as tokens; with neither, it is the compute-optimal 20 tokens a parameter."""

    model: ModelConfig = Field(description="the shape, from one size dial")
    steps: int | None = Field(None, ge=1, description="optimizer steps; give this or tokens, or neither")
    tokens: int | None = Field(None, ge=1, description="training tokens, rounded up to whole steps")
    global_batch: int = Field(8, ge=1, description="sequences a step, over all processes and micro-batches")
    learning_rate: float = Field(3e-3, gt=0, description="peak, reached after the warmup")
    warmup_steps: int = Field(20, ge=0, description="steps of linear rise to the peak")
    final_share: float = Field(0.1, ge=0, le=1, description="share of the peak at which the cosine ends")
    weight_decay: float = Field(0.1, ge=0, description="decoupled (AdamW), on matrices only")
    beta1: float = Field(0.9, ge=0, lt=1, description="Adam's memory of the gradient")
    beta2: float = Field(0.95, ge=0, lt=1, description="Adam's memory of its square")
    gradient_clip: float = Field(1.0, gt=0, description="largest global norm of the gradient")
    seed: int = Field(0, ge=0, description="of the initial weights, the order of the data and the samples")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 on a GPU that has it, float32 on a CPU (where bfloat16 is 100 × slower)"
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        0, description="what DeepSpeed shards over processes: 1 optimizer states, 2 gradients too, 3 weights too"
    )
    validation_every: int = Field(100, ge=1, description="steps between two measures of the validation loss")
    validation_tokens: int = Field(
        65_536,
        ge=1,
        description="tokens of the validation split that are measured, evenly spread; fewer if it has fewer",
    )
    sample_prompts: tuple[str, ...] = Field(
        ("The", "In the year", "What is"), description="beginnings that the trained model continues in samples.md"
    )
    sample_tokens: int = Field(48, ge=1, description="length of a continuation")

    @model_validator(mode="after")
    def _one_length(self) -> PretrainConfig:
        if self.steps is not None and self.tokens is not None:
            raise ValueError("give steps or tokens, not both")
        return self

    def total_steps(self, shape: ModelShape) -> int:
        """Optimizer steps of the run. Raises ConfigError when the warmup would not end."""
        tokens_a_step = self.global_batch * shape.context
        steps = self.steps or -(-(self.tokens or chinchilla_tokens(shape)) // tokens_a_step)
        if self.warmup_steps >= steps:
            raise ConfigError(
                f"pretrain.warmup_steps is {self.warmup_steps:,}, but the run has only {steps:,} steps.",
                "Lower warmup_steps (a few per cent of the run), or train longer.",
            )
        return steps
