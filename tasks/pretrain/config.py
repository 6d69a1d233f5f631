"""What a profile says of pretraining: the model, how much of what, and the optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from models.config import ModelConfig
from models.presets import ModelShape, chinchilla_tokens
from storage.errors import ConfigError
from tasks.config import StageConfig

Mixture = dict[str, Annotated[float, Field(gt=0)]]


class MixtureChange(StageConfig):
    """Other weights from a step on: more of the best text at the end of a run, for instance (annealing)."""

    from_step: int = Field(ge=2, description="the first step with these weights")
    mixture: Mixture = Field(min_length=1, description="as pretrain.mixture")


class HealingConfig(StageConfig):
    """What becomes of a run whose loss is no number or rises and stays up: it goes back to a checkpoint and leaves out
    the batches that led there; the second time it also lowers the learning rate; the third time it ends."""

    enabled: bool = Field(
        True, description="off: a loss that is no number ends the run, a rising one is not looked for"
    )
    spike_deviations: float = Field(
        6.0, gt=0, description="standard deviations of the trailing losses that a loss must rise above their mean"
    )
    spike_window: int = Field(50, ge=2, description="trailing steps that a loss is judged by")
    skip_batches: int = Field(
        16,
        ge=1,
        description="batches left out, the last of them that of the step that diverged; twice as many the second time. "
        "Fewer, if no checkpoint is kept from before them",
    )
    again_within: int = Field(
        200, ge=1, description="a divergence within so many steps of the one before is the second, or the third"
    )
    rate_factor: float = Field(0.5, gt=0, lt=1, description="what the second one multiplies the learning rate by")


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
    mixture: Mixture | None = Field(
        None,
        min_length=1,
        description="weights of the sources, as shares of the training tokens; a source that is not named is left out. "
        "Without it sources come in their natural proportions",
    )
    curriculum: tuple[MixtureChange, ...] = Field((), description="other weights later in the run, by step")
    isolate_documents: bool = Field(
        False,
        description="documents of one window don't see each other: attention and positions begin anew at each, and the "
        "first token of the next is not predicted. Validation stays as it is, comparable with other runs",
    )
    context_warmup_steps: int = Field(
        0, ge=0, description="steps with a shorter context, which doubles in equal intervals; 0 for none"
    )
    context_warmup_parts: int = Field(
        8, ge=2, description="parts that a window is cut into at first, a power of 2; all its tokens are seen"
    )
    fim_rate: float = Field(
        0.0,
        ge=0,
        le=1,
        description="fill in the middle: the share of documents, each as far as a window holds it, that are cut in "
        "three and served with the middle last, so that the model learns to fill a gap between what stands before and "
        "behind it. 0.5 to 0.9 is usual and hardly costs anything from left to right (Bavarian et al. 2022); 0 for "
        "none. Each takes three tokens of its window for marks. Validation is never rearranged",
    )
    fim_spm_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="of the rearranged documents, the share in the order suffix, prefix, middle; the others come as "
        "prefix, suffix, middle. Learned together, each order gains from the other",
    )
    seed: int = Field(
        0, ge=0, description="of the initial weights, the order of the data, what fim_rate rearranges and the samples"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 on a GPU that has it, float32 on a CPU (where bfloat16 is 100 × slower)"
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
    healing: HealingConfig = Field(HealingConfig(), description="what becomes of a run that diverges")

    @model_validator(mode="after")
    def _one_length(self) -> PretrainConfig:
        if self.steps is not None and self.tokens is not None:
            raise ValueError("give steps or tokens, not both")
        return self

    @model_validator(mode="after")
    def _curriculum_follows(self) -> PretrainConfig:
        if self.curriculum and self.mixture is None:
            raise ValueError("curriculum changes a mixture: give pretrain.mixture, the weights of the first steps, too")
        steps = [change.from_step for change in self.curriculum]
        if steps != sorted(set(steps)):
            raise ValueError("the from_step of each change in curriculum must be later than the one before")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> PretrainConfig:
        parts = self.context_warmup_parts
        if parts & (parts - 1):
            raise ValueError(f"context_warmup_parts is {parts}, which is not a power of 2")
        if self.context_warmup_steps and self.model.context % parts:
            raise ValueError(f"a context of {self.model.context} can't be cut into {parts} (context_warmup_parts)")
        return self

    def named_sources(self) -> dict[str, list[str]]:
        """The sources that are named somewhere in this config, by the path of the field."""
        named = {"mixture": list(self.mixture)} if self.mixture is not None else {}
        return named | {
            f"curriculum.{number}.mixture": list(change.mixture) for number, change in enumerate(self.curriculum)
        }

    def context_parts(self, step: int) -> int:
        """Parts that each window of a step is cut into: halved in equal intervals until it is whole.

        (Li et al. 2022, "The stability-efficiency dilemma": sequence length warmup; all tokens are kept here.)
        """
        if step > self.context_warmup_steps:
            return 1
        intervals = self.context_warmup_parts.bit_length() - 1
        return self.context_warmup_parts >> ((step - 1) * intervals // self.context_warmup_steps)

    def total_steps(self, shape: ModelShape) -> int:
        """Optimizer steps of the run. Raises ConfigError when a warmup would not end, or a change would not come."""
        tokens_a_step = self.global_batch * shape.context
        steps = self.steps or -(-(self.tokens or chinchilla_tokens(shape)) // tokens_a_step)
        for name in ("warmup_steps", "context_warmup_steps"):
            if getattr(self, name) >= steps:
                raise ConfigError(
                    f"pretrain.{name} is {getattr(self, name):,}, but the run has only {steps:,} steps.",
                    f"Lower {name} (a few per cent of the run), or train longer.",
                )
        if self.curriculum and self.curriculum[-1].from_step > steps:
            raise ConfigError(
                f"pretrain.curriculum changes at step {self.curriculum[-1].from_step:,}, but the run has only "
                f"{steps:,} steps.",
                "Change the mixture earlier, or train longer.",
            )
        return steps
