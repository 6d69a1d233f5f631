"""The pretraining section of a profile: model, data, schedule and optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from models.config import MOST_TOKENS as MOST_CONTEXT
from models.config import ModelConfig
from models.presets import Shape, chinchilla_tokens, derive
from storage.errors import ConfigError
from tasks.pretrain.long_context.scaling import RopeScalingConfig
from tasks.pretrain.recipe.steps import decay_steps, parts_at, wholes_until
from tasks.stage.config import StageConfig
from tasks.training.adapters.config import WHOLE, LoraConfig, Part

MOST_STEPS, MOST_TOKENS = 10**9, 10**15  # far beyond any training so far, and within what torch can count to
Layers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=2, max_length=2)]
Mixture = dict[str, Annotated[float, Field(gt=0)]]
Epochs = Annotated[float, Field(gt=0)]
# Names and usual weights: Switch Transformer, section 2.2, and ST-MoE, section 3.2
ROUTER_LOSSES = {"balance_loss": ("balance", 0.01), "router_z_loss": ("z_loss", 0.001)}


AVERAGES = EMA, MEAN = "ema", "mean"  # of the weights: names of `final_weights`, and among the optimizer's states


class MixtureChange(StageConfig):
    """New mixture weights from a step on, for instance more of the best text at the end (annealing)."""

    from_step: int = Field(ge=2, description="first step with these weights")
    mixture: Mixture = Field(min_length=1, description="as pretrain.mixture")


class HealingConfig(StageConfig):
    """Recovery from divergence (a NaN, or a loss that rises and stays up): roll back to a checkpoint and skip the
    batches that led there. The second time, also lower the learning rate. The third time, stop."""

    enabled: bool = Field(
        True, description="recover from divergence. If false, NaN stops the run and spikes are not detected"
    )
    spike_deviations: float = Field(
        6.0, gt=0, description="a spike is a loss this many standard deviations above the trailing mean"
    )
    spike_window: int = Field(50, ge=2, description="trailing steps over which that mean is taken")
    skip_batches: int = Field(
        16,
        ge=1,
        description="batches to skip, up to and including the one that diverged: twice as many the second time, fewer "
        "if no checkpoint from before them is kept",
    )
    again_within: int = Field(
        200, ge=1, description="a divergence within this many steps of the previous one counts as a repeat"
    )
    rate_factor: float = Field(0.5, gt=0, lt=1, description="factor on the learning rate after a repeated divergence")


class PretrainLora(LoraConfig):
    """An adapter over a base that is trained on documents."""

    whole: tuple[Part, ...] = Field((), description=WHOLE)  # in every key, as it was from the start

    @model_validator(mode="after")
    def _is_exact(self) -> PretrainLora:
        if self.dropout:
            raise ValueError("dropout draws at random, so a resume would not be exact: leave it at 0")
        if self.quantize != "none":
            raise ValueError(
                "quantize is for post-training: leave it at none, or share the base among processes by fsdp"
            )
        return self


class FreezeConfig(StageConfig):
    """Weights that stay as they are. They have no gradients, no optimizer states and no place in checkpoints."""

    parts: tuple[Part, ...] = Field(
        (),
        description="embedding (with learned positions), head, norms (of the layers too). A tied matrix needs both of "
        "its names",
    )
    layers: Layers | None = Field(None, description="first and last layer to freeze, counted from 0")
    all_but_layers: Layers | None = Field(
        None, description="first and last layer to train, counted from 0. Everything else is frozen"
    )

    @model_validator(mode="after")
    def _freezes_something(self) -> FreezeConfig:
        if self.all_but_layers is not None and self.layers is not None:
            raise ValueError("layers and all_but_layers exclude each other: set one of them")
        if self.all_but_layers is not None and self.parts and set(self.parts) != {"norms"}:
            raise ValueError("all_but_layers freezes embedding and head already: leave them out of parts")
        if not self.parts and self.layers is None and self.all_but_layers is None:
            raise ValueError("it freezes nothing: set parts, layers or all_but_layers, or leave freeze out")
        for name in ("layers", "all_but_layers"):
            if (chosen := getattr(self, name)) is not None and chosen[0] > chosen[1]:
                raise ValueError(f"{name} ends before it begins: give the first layer, then the last")
        return self


class AverageConfig(StageConfig):
    """The uniform mean of weights along the end of the run (LAWA, Kaddour 2022)."""

    last: int = Field(ge=2, description="number of weights in the mean, the last step's among them")
    every: int = Field(ge=1, description="steps from one to the next")

    def steps(self, steps: int) -> range:
        """The steps whose weights are in the mean, in a run of `steps` steps."""
        return range(steps - (self.last - 1) * self.every, steps + 1, self.every)


def _default_batch(fields: dict[str, Any]) -> int:
    tokens: int | None = fields["global_batch_tokens"]
    context = fields["model"].context if fields["model"] else fields["context"]
    return 8 if tokens is None or context is None else tokens // context


class PretrainConfig(StageConfig):
    """Set the length as steps or tokens. The default is the compute-optimal 20 tokens per parameter. A base that is
    trained on needs one of them."""

    model: ModelConfig | None = Field(
        None, description="model shape, derived from its depth (null with a `base`, which is trained on as it is)"
    )
    context: int | None = Field(
        None,
        ge=2,
        le=MOST_CONTEXT,
        exclude_if=lambda value: value is None,  # so that keys from before this field stay valid
        description="tokens of a training sequence, if a `base` is trained on (default: its own context)",
    )
    rope_scaling: RopeScalingConfig | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="for a context above the base's: how its rotary positions are scaled. The report then has the loss "
        "by position, and how many hidden numbers are found, before and after",
    )
    steps: int | None = Field(None, ge=1, le=MOST_STEPS, description="optimizer steps (set this or tokens, or neither)")
    tokens: int | None = Field(None, ge=1, le=MOST_TOKENS, description="training tokens, rounded up to whole steps")
    global_batch_tokens: int | None = Field(
        None, ge=1, description="global batch in tokens, a multiple of the context (set this or global_batch)"
    )
    global_batch: int = Field(
        default_factory=_default_batch,
        ge=1,
        description="sequences per step over all processes (default: from global_batch_tokens, or 8)",
    )
    batch_warmup_steps: int = Field(
        0, ge=0, description="steps of batch-size warmup: the batch doubles in equal intervals (0: no warmup)"
    )
    batch_warmup_parts: int = Field(
        8, ge=2, description="global batch divided by the first batch of the warmup, a power of 2"
    )
    schedule: Literal["cosine", "wsd", "linear", "constant"] = Field(
        "cosine", description="learning-rate schedule after warmup (wsd: warmup, stable, decay)"
    )
    learning_rate: float = Field(3e-3, gt=0, le=1000, description="peak learning rate, reached after warmup")
    warmup_steps: int = Field(20, ge=0, description="steps of linear warmup to the peak")
    final_share: float = Field(
        0.1, ge=0, le=1, description="learning rate of the last step as a share of the peak, unused by constant"
    )
    decay_share: float = Field(0.2, gt=0, le=1, description="share of the steps in which wsd decays, at the end")
    decay_shape: Literal["linear", "1-sqrt"] = Field(
        "1-sqrt", description="shape of the decay of wsd (1-sqrt falls fast at first)"
    )
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw",
        description="muon: Muon for the blocks' matrices, AdamW for the rest. It needs the engine ddp or fsdp, or "
        "deepspeed with zero_stage 0",
    )
    muon_learning_rate: float | None = Field(
        None, gt=0, le=1000, description="peak learning rate of Muon (default: learning_rate)"
    )
    muon_momentum: float = Field(0.95, ge=0, lt=1, description="momentum of Muon")
    weight_decay: float = Field(0.1, ge=0, le=1000, description="decoupled weight decay, on matrices only")
    beta1: float = Field(0.9, ge=0, lt=1, description="Adam's decay rate of the first moment")
    beta2: float = Field(0.95, ge=0, lt=1, description="Adam's decay rate of the second moment")
    epsilon: float = Field(1e-8, gt=0, le=1, description="Adam's epsilon")
    gradient_clip: float = Field(1.0, gt=0, description="maximum global gradient norm")
    z_loss: float = Field(
        0.0,
        ge=0,
        description="weight of the auxiliary loss log² Z, which keeps logits small (PaLM: 1e-4) and is not reported",
    )
    balance_loss: float | None = Field(
        None,
        ge=0,
        exclude_if=lambda value: value is None,  # so that keys from before this field stay valid
        description="of a mixture of experts: weight of the loss that spreads tokens evenly over the experts of each "
        "layer, which is not reported (default: 0.01, as Switch Transformer)",
    )
    router_z_loss: float | None = Field(
        None,
        ge=0,
        exclude_if=lambda value: value is None,
        description="of a mixture of experts: weight of the loss that keeps the logits of routers small, which is not "
        "reported (default: 0.001, as ST-MoE)",
    )
    mup_base_width: int | None = Field(
        None,
        ge=1,
        description="width at which the learning rate was tuned: muP scales initial weights and learning rates from it "
        "to this model's width. Keep the head size the same",
    )
    mup_base_depth: int | None = Field(
        None,
        ge=1,
        exclude_if=lambda value: value is None,  # so that keys from before this field stay valid
        description="depth at which the learning rate was tuned: what each block adds is divided by depth / base "
        "(CompleteP, Dey et al. 2025)",
    )
    mixture: Mixture | None = Field(
        None,
        min_length=1,
        description="weights of the sources, as shares of the training tokens. Sources not named are left out "
        "(default: natural proportions)",
    )
    curriculum: tuple[MixtureChange, ...] = Field((), description="changes of the mixture during the run, by step")
    max_epochs: Epochs | dict[str, Epochs] | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="largest number of times that a source may be read, for all or by source. A run that would read "
        "one more often ends before training. Null: any",
    )
    packing: Literal["stream", "best_fit", "long_first"] = Field(
        "stream",
        description="stream: concatenate documents and cut every context tokens. best_fit: pack whole documents into "
        "windows (best-fit decreasing, Ding et al. 2024), cutting only those longer than a window. The rest of a "
        "window is padding without loss. long_first: as best_fit, but each epoch of a source begins with the "
        "windows that one document fills. Then come those whose longest document fills half of them, a quarter and so "
        "on, each group shuffled. context_warmup_steps cuts windows in any case",
    )
    isolate_documents: bool = Field(
        False,
        description="no attention across documents of one window: positions restart at each, and the first token of "
        "the next is not predicted. Validation is unaffected, so that runs stay comparable",
    )
    context_warmup_steps: int = Field(
        0, ge=0, description="steps of context-length warmup: the context doubles in equal intervals (0: no warmup)"
    )
    context_warmup_parts: int = Field(
        8, ge=2, description="parts that each window is cut into at first, a power of 2, without dropping tokens"
    )
    fim_rate: float = Field(
        0.0,
        ge=0,
        le=1,
        description="fill in the middle (FIM): share of documents, as far as a window holds them, that are rearranged "
        "as prefix, suffix, middle so that the model learns infilling (0: none). 0.5 to 0.9 is usual and hardly costs "
        "left-to-right quality (Bavarian et al. 2022). Each takes three special tokens of its window. "
        "Validation is never rearranged",
    )
    fim_spm_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of the FIM documents in the order suffix, prefix, middle (SPM). The rest are PSM. "
        "Training on both improves both",
    )
    seed: int = Field(0, ge=0, description="seed for initial weights, shuffling, FIM and samples")
    precision: Literal["auto", "float32", "tf32", "bfloat16", "float16", "float8"] = Field(
        "auto",
        description="auto: bfloat16 on GPUs that support it, float32 on a CPU (others are 100 × slower there). tf32: "
        "float32 with TF32 matrix products. float16: with dynamic loss scaling. float8: with torchao",
    )
    snapshot_every: int | None = Field(
        None, ge=1, description="steps between model snapshots, kept in snapshots/step-N/ of the artifact"
    )
    adapter: PretrainLora | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="adapter to train over the frozen base, which transformers then computes. It is merged into "
        "model/, and kept beside it in adapter/ unless the base gets new tokens, which the adapter can't bring to it "
        "(null: none, all weights of the base are trained)",
    )
    freeze: FreezeConfig | None = Field(
        None, exclude_if=lambda value: value is None, description="weights that are not trained"
    )
    ema_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        exclude_if=lambda value: value is None,
        description="decay of an exponential moving average of the weights, such as 0.999. At step t it is at most "
        "(1 + t) / (10 + t)",
    )
    average: AverageConfig | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="mean of the weights of some steps at the end of the run",
    )
    final_weights: Literal["last", "ema", "mean"] = Field(
        "last",
        exclude_if=lambda value: value == "last",
        description="weights of model/. last: of the last step. ema: the average of ema_decay. mean: that of average. "
        "The validation loss of each is reported",
    )
    validation_every: int = Field(100, ge=1, description="steps between validations")
    validation_tokens: int = Field(
        65_536, ge=1, description="tokens of the validation split to evaluate, evenly spread"
    )
    sample_prompts: tuple[str, ...] = Field(("The", "In the year", "What is"), description="prompts for samples.md")
    sample_tokens: int = Field(48, ge=1, description="tokens to generate per prompt")
    healing: HealingConfig = Field(HealingConfig(), description="recovery from divergence")

    @field_validator("model")
    @classmethod
    def _model_can_be_built(cls, model: ModelConfig | None) -> ModelConfig | None:
        if model is not None:
            derive(model, vocab_size=1)  # raises ShapeError, a ValueError
        return model

    @model_validator(mode="after")
    def _one_context(self) -> PretrainConfig:
        if self.model is not None and self.context is not None:
            raise ValueError("context is of a base: set model.context")
        if self.rope_scaling is not None and (self.model is not None or self.context is None):
            raise ValueError("rope_scaling is for a `base` and a context above its own: set context, and model to null")
        if self.model is None and self.steps is None and self.tokens is None:
            raise ValueError("steps or tokens must say for how long a base is trained on")
        for name in ("mup_base_width", "mup_base_depth"):
            if self.model is None and getattr(self, name) is not None:
                raise ValueError(f"{name} sets initial weights, which a base has: leave it null")
        if self.model is not None and self.model.family == "gemma3" and self.mup_base_width is not None:
            raise ValueError(
                "mup_base_width has no rule for gemma3, whose embeddings grow with the width: leave it null"
            )
        if self.model is not None and self.model.family in ("gemma3", "olmo3") and self.mup_base_depth is not None:
            raise ValueError(
                f"mup_base_depth has no rule for {self.model.family}, which normalises what layers add: leave it null"
            )
        if self.model is None and self.global_batch_tokens is not None and self.context is None:
            raise ValueError("global_batch_tokens needs the context, or set global_batch")
        return self

    @model_validator(mode="after")
    def _one_length(self) -> PretrainConfig:
        if self.steps is not None and self.tokens is not None:
            raise ValueError("set steps or tokens, not both: leave the other null")
        return self

    @model_validator(mode="before")
    @classmethod
    def _batch_in_tokens(cls, values: Any) -> Any:
        """Null takes back a parent profile's number of sequences."""
        if isinstance(values, Mapping) and values.get("global_batch", 0) is None:
            return {name: value for name, value in values.items() if name != "global_batch"}
        return values

    @model_validator(mode="after")
    def _curriculum_follows(self) -> PretrainConfig:
        if self.curriculum and self.mixture is None:
            raise ValueError("curriculum changes a mixture: give pretrain.mixture, the weights of the first steps, too")
        steps = [change.from_step for change in self.curriculum]
        if steps != sorted(set(steps)):
            raise ValueError("the from_step of each change in curriculum must be later than the one before")
        if isinstance(self.max_epochs, dict) and (unmixed := sorted(self.max_epochs.keys() - self.mixed_sources)):
            raise ValueError(f"max_epochs names {', '.join(unmixed)}, but pretrain.mixture doesn't: add a weight")
        return self

    @model_validator(mode="after")
    def _one_batch(self) -> PretrainConfig:
        tokens, context = self.global_batch_tokens, self.sequence
        if tokens is not None and context is not None and tokens != self.global_batch * context:
            raise ValueError(
                f"global_batch_tokens is {tokens:,}, but {self.global_batch} sequences of {context} tokens are "
                f"{self.global_batch * context:,}: leave global_batch out or null, and set a multiple of the context"
            )
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> PretrainConfig:
        for name, whole in (("context", self.sequence or 0), ("batch", self.global_batch)):
            parts = getattr(self, f"{name}_warmup_parts")
            if parts & (parts - 1):
                raise ValueError(f"{name}_warmup_parts is {parts}, which is not a power of 2")
            if getattr(self, f"{name}_warmup_steps") and whole % parts:
                raise ValueError(f"a {name} of {whole} can't be cut into {parts} ({name}_warmup_parts)")
        return self

    @model_validator(mode="after")
    def _adapter_has_a_base(self) -> PretrainConfig:
        if self.adapter is not None and self.model is not None:
            raise ValueError("adapter is laid over a base: leave model null, or train all weights of the new model")
        if self.adapter is not None and self.freeze is not None:
            raise ValueError("an adapter leaves all of the base frozen: leave freeze out, or use adapter.whole")
        return self

    @model_validator(mode="after")
    def _final_weights_are_there(self) -> PretrainConfig:
        needs = {"ema": ("ema_decay", self.ema_decay), "mean": ("average", self.average)}
        if self.final_weights in needs and needs[self.final_weights][1] is None:
            raise ValueError(f"final_weights is {self.final_weights}: set {needs[self.final_weights][0]} too")
        return self

    @model_validator(mode="after")
    def _muon_is_there(self) -> PretrainConfig:
        if self.muon_learning_rate is not None and self.optimizer != "muon":
            raise ValueError("muon_learning_rate does not apply to adamw: set it to null, or choose the optimizer muon")
        return self

    @model_validator(mode="after")
    def _experts_are_there(self) -> PretrainConfig:
        if self.model is not None and self.model.family != "qwen3_moe":
            self.refuse_router_losses(self.model.family)
        return self

    def refuse_router_losses(self, family: str) -> None:
        """Raises ValueError for a setting of the routers that a model of a `family` lacks."""
        for name in ROUTER_LOSSES:
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is of the family qwen3_moe, not of {family}")

    @property
    def router_losses(self) -> dict[str, float]:
        """The weights of the two losses of routers, as `models.kernels.experts.set_losses` takes them."""
        chosen = {name: getattr(self, name) for name in ROUTER_LOSSES}
        return {
            name: usual if (value := chosen[key]) is None else value for key, (name, usual) in ROUTER_LOSSES.items()
        }

    @property
    def new_model(self) -> ModelConfig:
        """The section of a new model, where there is one."""
        assert self.model is not None
        return self.model

    @property
    def sequence(self) -> int | None:
        """Tokens of a training sequence. None for those of a base, until it is known."""
        return self.model.context if self.model else self.context

    @property
    def trains_all(self) -> bool:
        """Whether all weights are trained: none is frozen, and there is no adapter."""
        return self.adapter is None and self.freeze is None

    def named_sources(self) -> dict[str, list[str]]:
        """The sources that this config names, by the path of the field."""
        named = {"mixture": list(self.mixture)} if self.mixture is not None else {}
        return named | {
            f"curriculum.{number}.mixture": list(change.mixture) for number, change in enumerate(self.curriculum)
        }

    @property
    def mixed_sources(self) -> set[str]:
        """The sources with a weight, at the beginning or later. Empty for natural proportions."""
        return {name for names in self.named_sources().values() for name in names}

    def epochs_allowed(self, source: str) -> float | None:
        """The largest number of times that a source may be read, or None for any."""
        return self.max_epochs.get(source) if isinstance(self.max_epochs, dict) else self.max_epochs

    def context_parts(self, step: int) -> int:
        """The number of parts that each window of a step is cut into: halved in equal intervals down to 1.

        Sequence length warmup (Li et al. 2022, "The stability-efficiency dilemma"), but without dropping tokens.
        """
        return parts_at(step, warmup_steps=self.context_warmup_steps, parts=self.context_warmup_parts)

    def batch(self, step: int) -> int:
        """The sequences of a step: fewer during batch warmup (as in GPT-3, Brown et al. 2020, which ramps linearly)."""
        parts = parts_at(step, warmup_steps=self.batch_warmup_steps, parts=self.batch_warmup_parts)
        return self.global_batch // parts

    def samples(self, steps: int) -> int:
        """The total sequences of the first `steps` steps."""
        return wholes_until(
            steps, self.global_batch, warmup_steps=self.batch_warmup_steps, parts=self.batch_warmup_parts
        )

    def total_steps(self, shape: Shape) -> int:
        """The optimizer steps of the run. Raises ConfigError for warmups or mixture changes beyond its end."""
        needed = -(-(self.tokens or chinchilla_tokens(shape)) // shape.context)
        warm = self.batch_warmup_steps
        # Whole steps, rounded up: those of the warmup, then as many full batches as the rest needs
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
        if self.average and self.average.steps(steps).start < 1:
            last, every = self.average.last, self.average.every
            raise ConfigError(
                f"pretrain.average needs {(last - 1) * every + 1:,} steps ({last} weights, {every:,} steps apart), but "
                f"the run has only {steps:,}.",
                "Lower average.last or average.every, or train longer.",
            )
        if self.curriculum and self.curriculum[-1].from_step > steps:
            raise ConfigError(
                f"pretrain.curriculum changes at step {self.curriculum[-1].from_step:,}, but the run has only "
                f"{steps:,} steps.",
                "Change the mixture earlier, or train longer.",
            )
        return steps
