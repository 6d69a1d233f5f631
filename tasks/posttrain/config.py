"""The settings shared by all post-training methods, and the limits of a pair that follow from them."""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol, Self

from pydantic import Field, model_validator

from storage.errors import ConfigError
from tasks.stage.config import StageConfig
from tasks.training.adapters.config import AdapterConfig, LoraConfig, VirtualTokens

Deduplicate = Literal["exact", "near", "none"]
LearnsFrom = Literal["downloaded", "feedback", "best_of_n", "both"]


class PosttrainConfig(StageConfig):
    """The optimizer, and which rows are used. Each method adds its loss."""

    takes_virtual_tokens: ClassVar[bool] = False

    epochs: float = Field(1.0, gt=0, description="passes over the pairs")
    global_batch: int = Field(16, ge=1, description="pairs a step, over all processes and micro-batches")
    learning_rate: float = Field(1e-3, gt=0, le=1000, description="peak after the warmup, decaying to 0 along a cosine")
    warmup_share: float = Field(0.05, ge=0, lt=1, description="share of the steps spent warming up")
    weight_decay: float = Field(0.0, ge=0, le=1000, description="decoupled (AdamW), on matrices only")
    gradient_clip: float = Field(1.0, gt=0, description="largest global norm of the gradient")
    max_length: int | None = Field(None, ge=8, description="maximum tokens of a rendered pair (default: the context)")
    deduplicate: Deduplicate = Field(
        "exact",
        description="pairs to drop before training and validation. exact: all but one of each set of pairs that are "
        "equal but for white space and Unicode normalisation. near: also pairs that dedup's defaults call "
        "near-duplicates (unsuitable for pairs made from a template, such as sums)",
    )
    max_dropped_share: float = Field(
        0.5, ge=0, le=1, description="largest share of unusable pairs that a run accepts, duplicates not counted"
    )
    validation_share: float = Field(
        0.05, ge=0, lt=1, description="share of pairs held out, by hash of their id. Pairs with one prompt go together"
    )
    validation_every: int | None = Field(None, ge=1, description="steps between validations (default: about 10 a run)")
    adapter: AdapterConfig | None = Field(
        None,
        exclude_if=lambda adapter: adapter is None,  # so that keys from before this field stay valid
        description="adapter to train beside the frozen model (null: none, all weights of the model are trained)",
    )
    seed: int = Field(0, ge=0, description="seed of the shuffles, and of an adapter's first weights and dropout")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 on a GPU that supports it, float32 otherwise"
    )

    @property
    def generated_tokens(self) -> int:
        """Tokens that a prompt must leave for an answer."""
        return 0

    @property
    def answer_tokens(self) -> int:
        """The longest answer that the model writes, which leaves room for a prompt."""
        return self.generated_tokens

    @property
    def generated_text(self) -> str:
        """The same in an error, as a value of max_new_tokens."""
        return f"{self.answer_tokens:,}"

    @property
    def samples(self) -> bool:
        """Whether the model answers prompts while it is trained, in whatever number of processes."""
        return False

    @property
    def judged(self) -> bool:
        """Whether the stage learns from the rewards of a reward model."""
        return False

    @property
    def frozen_models(self) -> int:
        """Models as large as the trained one that are in memory beside it: a reference, a judge, a teacher."""
        return 0

    @property
    def quantized(self) -> bool:
        """Whether the model below the adapter is quantized."""
        return isinstance(self.adapter, LoraConfig) and self.adapter.quantize != "none"

    @property
    def virtual_tokens(self) -> int:
        """Virtual tokens that are trained before every text."""
        return self.adapter.tokens if isinstance(self.adapter, VirtualTokens) else 0

    @model_validator(mode="after")
    def _trains_such_an_adapter(self) -> Self:
        if self.virtual_tokens and not self.takes_virtual_tokens:
            raise ValueError("virtual tokens are trained by sft, orpo, cpo, kto and dpo only: give it a LoRA adapter")
        return self

    @model_validator(mode="after")
    def _decays_matrices_only(self) -> Self:
        """Weight decay and DoRA exclude each other: the trainer would decay DoRA's magnitudes as if matrices."""
        if isinstance(self.adapter, LoraConfig) and self.adapter.dora and self.weight_decay:
            raise ValueError("weight_decay is on matrices only, and dora trains vectors too: use only one of them")
        return self


class PreferenceConfig(PosttrainConfig):
    """The settings of methods that learn from preferences."""

    takes_virtual_tokens: ClassVar[bool] = True

    learns_from: LearnsFrom | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="downloaded: pairs of `download`. feedback, best_of_n: those of that earlier link. both: all of "
        "these (default: those of the last such link before, or else downloaded)",
    )


class Limited(Protocol):
    """A config that limits the tokens of a pair."""

    @property
    def max_length(self) -> int | None:
        """Maximum tokens, or None for the model's context."""


def max_length_of(name: str, config: Limited, context: int) -> int:
    """Maximum tokens of a rendered pair. Raises ConfigError for more than the model's context, less the virtual tokens
    that precede them."""
    virtual = config.virtual_tokens if isinstance(config, PosttrainConfig) else 0
    context -= virtual
    most = config.max_length or context
    if most > context or context < 1:
        of_it = f", less the {virtual:,} virtual tokens of {name}.adapter" if virtual else ""
        raise ConfigError(
            f"{name}.max_length is {most}, but the model's context is {context}{of_it}.",
            f"Lower it to {context}, or pretrain a model with a longer context (pretrain.model.context).",
        )
    return most


def check_room(name: str, config: PosttrainConfig, max_length: int) -> None:
    """Raises ConfigError if an answer may take all the tokens of prompt and answer together."""
    if config.answer_tokens >= max_length:
        raise ConfigError(
            f"{name}.max_new_tokens is {config.generated_text}, which leaves none of {max_length:,} tokens for a "
            "prompt.",
            "Lower it, or raise the context.",
        )
