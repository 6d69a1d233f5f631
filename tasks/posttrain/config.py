"""The settings that every post-training method has."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.posttrain.adapters.config import LoraConfig
from tasks.stage.config import StageConfig

Deduplicate = Literal["exact", "near", "none"]
LearnsFrom = Literal["downloaded", "feedback", "both"]


class PosttrainConfig(StageConfig):
    """The optimizer, and which rows are used; each method adds its loss."""

    epochs: float = Field(1.0, gt=0, description="passes over the pairs")
    global_batch: int = Field(16, ge=1, description="pairs a step, over all processes and micro-batches")
    learning_rate: float = Field(1e-3, gt=0, le=1000, description="peak, after the warmup; decays to 0 along a cosine")
    warmup_share: float = Field(0.05, ge=0, lt=1, description="share of the steps spent warming up")
    weight_decay: float = Field(0.0, ge=0, le=1000, description="decoupled (AdamW), on matrices only")
    gradient_clip: float = Field(1.0, gt=0, description="largest global norm of the gradient")
    max_length: int | None = Field(None, ge=8, description="maximum tokens of a rendered pair (default: the context)")
    deduplicate: Deduplicate = Field(
        "exact",
        description="pairs to drop before training and validation. exact: all but one of those that are equal but for "
        "white space and Unicode normalisation. near: also those that dedup takes for near-duplicates by default; not "
        "for pairs made from a template, such as sums",
    )
    max_dropped_share: float = Field(
        0.5, ge=0, le=1, description="largest share of unusable pairs that a run accepts, duplicates not counted"
    )
    validation_share: float = Field(
        0.05, ge=0, lt=1, description="share of pairs held out, by hash of their id; those with one prompt together"
    )
    validation_every: int | None = Field(None, ge=1, description="steps between validations (default: about 10 a run)")
    adapter: LoraConfig | None = Field(
        None,
        exclude_if=lambda adapter: adapter is None,  # so that artifacts made before there were adapters are known
        description="what is trained beside the frozen model; null: no adapter, all weights of the model",
    )
    seed: int = Field(0, ge=0, description="seed for shuffling the pairs, an adapter's first weights and its dropout")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 on a GPU that supports it, float32 otherwise"
    )

    @property
    def generated_tokens(self) -> int:
        """Room that a prompt must leave for an answer."""
        return 0

    @property
    def judged(self) -> bool:
        """Whether the stage learns from the rewards of a reward model."""
        return False

    @property
    def quantized(self) -> bool:
        """Whether the model below the adapter is."""
        return self.adapter is not None and self.adapter.quantize != "none"

    @model_validator(mode="after")
    def _decays_matrices_only(self) -> Self:
        """The trainer would take the magnitudes of DoRA for matrices."""
        if self.adapter is not None and self.adapter.dora and self.weight_decay:
            raise ValueError("weight_decay is on matrices only, and dora trains vectors too: do without one of them")
        return self


class PreferenceConfig(PosttrainConfig):
    """Of methods that learn from preferences: which."""

    learns_from: LearnsFrom | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="downloaded: pairs of `download`. feedback: those of the link `feedback` before. both (default: "
        "feedback where that link comes before, downloaded otherwise)",
    )
