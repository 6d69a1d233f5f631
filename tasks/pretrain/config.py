"""What a profile says of pretraining: the model, how much of what, and the optimizer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from models.config import ModelConfig
from models.presets import ModelShape, chinchilla_tokens, derive
from storage.errors import ConfigError
from tasks.pretrain.recipe.steps import decay_steps, parts_at, wholes_until
from tasks.stage.config import StageConfig

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


def _default_batch(given: dict[str, Any]) -> int:
    tokens: int | None = given["global_batch_tokens"]
    return 8 if tokens is None else tokens // given["model"].context


class PretrainConfig(StageConfig):
    """The length is given as steps or as tokens; with neither, it is the compute-optimal 20 tokens a parameter."""

    model: ModelConfig = Field(description="the shape, from one size dial")
    steps: int | None = Field(None, ge=1, description="optimizer steps; give this or tokens, or neither")
    tokens: int | None = Field(None, ge=1, description="training tokens, rounded up to whole steps")
    global_batch_tokens: int | None = Field(
        None, ge=1, description="global_batch in tokens, a multiple of the context; give one of the two"
    )
    global_batch: int = Field(
        default_factory=_default_batch,
        ge=1,
        description="sequences a step, over all processes and micro-batches; 8 without global_batch_tokens",
    )
    batch_warmup_steps: int = Field(
        0, ge=0, description="steps with a smaller global batch, which doubles in equal intervals; 0 for none"
    )
    batch_warmup_parts: int = Field(
        8, ge=2, description="how often the first batch goes into the global one, a power of 2"
    )
    schedule: Literal["cosine", "wsd", "linear", "constant"] = Field(
        "cosine", description="the learning rate after the warmup; wsd: at the peak, and down only at the end"
    )
    learning_rate: float = Field(3e-3, gt=0, description="peak, reached after the warmup")
    warmup_steps: int = Field(20, ge=0, description="steps of linear rise to the peak")
    final_share: float = Field(0.1, ge=0, le=1, description="share of the peak at the last step; not for constant")
    decay_share: float = Field(0.2, gt=0, le=1, description="share of the steps in which wsd falls, at the end")
    decay_shape: Literal["linear", "1-sqrt"] = Field("1-sqrt", description="how wsd falls; 1-sqrt: fast at first")
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw",
        description="muon: matrices of the blocks by Muon, the rest by AdamW; needs runtime.pretrain.engine ddp",
    )
    muon_learning_rate: float | None = Field(
        None, gt=0, description="peak for the matrices that Muon takes; learning_rate without it"
    )
    muon_momentum: float = Field(0.95, ge=0, lt=1, description="Muon's memory of the gradient")
    weight_decay: float = Field(0.1, ge=0, description="decoupled (AdamW), on matrices only")
    beta1: float = Field(0.9, ge=0, lt=1, description="Adam's memory of the gradient")
    beta2: float = Field(0.95, ge=0, lt=1, description="Adam's memory of its square")
    epsilon: float = Field(1e-8, gt=0, description="Adam's: added to the root of the square")
    gradient_clip: float = Field(1.0, gt=0, description="largest global norm of the gradient")
    z_loss: float = Field(
        0.0,
        ge=0,
        description="weight of log² Z, which keeps the logits small (PaLM: 1e-4); learned, not in the reported loss",
    )
    mup_base_width: int | None = Field(
        None,
        ge=1,
        description="width at which the learning rate was found: initial weights and rates are scaled from there to "
        "this model's width (muP). Keep the head size the same",
    )
    mixture: Mixture | None = Field(
        None,
        min_length=1,
        description="weights of the sources, as shares of the training tokens; a source that is not named is left out. "
        "Without it sources come in their natural proportions",
    )
    curriculum: tuple[MixtureChange, ...] = Field((), description="other weights later in the run, by step")
    packing: Literal["stream", "best_fit"] = Field(
        "stream",
        description="what a window holds. stream: as many tokens as fit, from where the window before ended, so that "
        "most windows begin and end within a document. best_fit: whole documents, put together so that little room is "
        "left over (best-fit decreasing, Ding et al. 2024); only those longer than a window are cut. What is left over "
        "is padding, which is not learned. What context_warmup_steps shortens is cut all the same",
    )
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
    precision: Literal["auto", "float32", "tf32", "bfloat16", "float16", "float8"] = Field(
        "auto",
        description="auto: bfloat16 on a GPU that has it, float32 on a CPU (where others are 100 × slower). "
        "tf32: float32 but for the matrix products; float16 with a loss scale that adapts; float8 by torchao",
    )
    snapshot_every: int | None = Field(
        None, ge=1, description="steps between two snapshots: models kept in snapshots/step-N/ for those who study them"
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

    @field_validator("model")
    @classmethod
    def _model_can_be_built(cls, model: ModelConfig) -> ModelConfig:
        derive(model, vocab_size=1)  # raises ShapeError, a ValueError
        return model

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
    def _one_batch(self) -> PretrainConfig:
        tokens, here = self.global_batch_tokens, self.global_batch * self.model.context
        if tokens is not None and tokens != here:
            raise ValueError(
                f"global_batch_tokens is {tokens:,}, but {self.global_batch} sequences of {self.model.context} tokens "
                f"are {here:,}: leave global_batch out, and give a multiple of the context"
            )
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> PretrainConfig:
        for name, whole in (("context", self.model.context), ("batch", self.global_batch)):
            parts = getattr(self, f"{name}_warmup_parts")
            if parts & (parts - 1):
                raise ValueError(f"{name}_warmup_parts is {parts}, which is not a power of 2")
            if getattr(self, f"{name}_warmup_steps") and whole % parts:
                raise ValueError(f"a {name} of {whole} can't be cut into {parts} ({name}_warmup_parts)")
        return self

    @model_validator(mode="after")
    def _muon_is_there(self) -> PretrainConfig:
        if self.muon_learning_rate is not None and self.optimizer != "muon":
            raise ValueError("muon_learning_rate has no effect on adamw: remove it, or choose the optimizer muon")
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
        return parts_at(step, warmup_steps=self.context_warmup_steps, parts=self.context_warmup_parts)

    def batch(self, step: int) -> int:
        """Sequences of a step: fewer while the batch warms up (as in GPT-3, Brown et al. 2020, there linearly)."""
        parts = parts_at(step, warmup_steps=self.batch_warmup_steps, parts=self.batch_warmup_parts)
        return self.global_batch // parts

    def samples(self, steps: int) -> int:
        """Sequences of the first `steps` steps together."""
        return wholes_until(
            steps, self.global_batch, warmup_steps=self.batch_warmup_steps, parts=self.batch_warmup_parts
        )

    def total_steps(self, shape: ModelShape) -> int:
        """Optimizer steps of the run. Raises ConfigError when a warmup would not end, or a change would not come."""
        needed = -(-(self.tokens or chinchilla_tokens(shape)) // shape.context)
        warm = self.batch_warmup_steps
        steps = self.steps or warm + max(0, -(-(needed - self.samples(warm)) // self.global_batch))
        for name in ("warmup_steps", "context_warmup_steps", "batch_warmup_steps"):
            if getattr(self, name) >= steps:
                raise ConfigError(
                    f"pretrain.{name} is {getattr(self, name):,}, but the run has only {steps:,} steps.",
                    f"Lower {name} (a few per cent of the run), or train longer.",
                )
        if self.schedule == "wsd" and self.warmup_steps + decay_steps(self.decay_share, steps) > steps:
            raise ConfigError(
                f"pretrain.decay_share is {self.decay_share}: with warmup_steps of {self.warmup_steps:,} that is more "
                f"than the {steps:,} steps of the run.",
                "Lower decay_share or warmup_steps, or train longer.",
            )
        if self.curriculum and self.curriculum[-1].from_step > steps:
            raise ConfigError(
                f"pretrain.curriculum changes at step {self.curriculum[-1].from_step:,}, but the run has only "
                f"{steps:,} steps.",
                "Change the mixture earlier, or train longer.",
            )
        return steps
