"""The input of the training child, and the identity that a resume must match."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from models.presets import OF_EXPERTS, ModelShape, Shape
from tasks.children.spec import ChildSpec
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.fim_tokens import FimTokens
from tasks.pretrain.healing.skipped_batches import BatchSchedule
from tasks.pretrain.recipe.steps import decay_steps


class TrainSpec(ChildSpec):
    """Written as JSON by the stage, read by every rank."""

    config: PretrainConfig
    shape: Shape
    steps: int
    tokens_digest: str
    tokenizer_digest: str
    train: list[Path]
    validation: list[Path]
    tokenizer: Path
    fim_tokens: FimTokens | None = None  # set if fim_rate is
    base: Path | None = None  # the folder of the model to train on
    base_digest: str = ""
    extends: Path | None = None  # the base as it was, if it got rows for new tokens
    aside: Path | None = None  # see Output.aside
    branches: Path | None = None  # where it leaves a branch, see checkpoints/branches.py
    # Not part of the identity: it changes only steps after the checkpoint that a run resumes from
    batch_schedule: BatchSchedule = BatchSchedule()

    @property
    def context(self) -> int:
        """Tokens of a training sequence: at most the model's context."""
        return self.config.sequence or self.shape.context

    @property
    def own_shape(self) -> ModelShape:
        """The shape of a model that our decoder computes."""
        assert isinstance(self.shape, ModelShape)
        return self.shape

    @property
    def trained_shape(self) -> Shape:
        """The shape with the context of training, on which memory and FLOPs depend."""
        return replace(self.shape, context=self.context)

    @property
    def insight(self) -> Path:
        """The folder of speeds and layer statistics, which are not part of the artifact."""
        return self.aside or self.scratch / "insight"

    @property
    def snapshots(self) -> Path:
        """The folder of snapshots until they are published in the artifact."""
        return self.scratch / "snapshots"

    @property
    def snapshot_steps(self) -> range:
        """The steps with a snapshot. The last step has the model itself."""
        every = self.config.snapshot_every
        return range(every, self.steps, every) if every else range(0)

    @property
    def common_steps(self) -> int:
        """The steps that a training by wsd has in common with longer ones: those before its decay, and before the mean
        of its last weights begins."""
        begun = self.steps - decay_steps(self.config.decay_share, self.steps)
        average = self.config.average
        return begun if average is None else min(begun, average.steps(self.steps).start - 1)

    @property
    def identity(self) -> str:
        """SHA-256 over everything that decides the weights, without paths and runtime. A resume refuses checkpoints of
        another identity."""
        return self.digest()

    def digest(self, but: Collection[str] = (), **besides: Any) -> str:
        """As `identity`, without some fields of the config, and with what decides the weights besides."""
        shape = asdict(self.shape)
        later = ("head_size", *OF_EXPERTS, "global_every", "local_rope_theta", "query_scalar")
        for name in (*later, "rope_scaling", "rope_parameters"):  # so that identities from before them stay valid
            if shape.get(name) is None:
                shape.pop(name, None)
        decides = {
            "config": self.config.model_dump(mode="json", exclude={*but}),
            "shape": shape,
            "tokens": self.tokens_digest,
            "tokenizer": self.tokenizer_digest,
            **({"base": self.base_digest} if self.base_digest else {}),
            **besides,
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
