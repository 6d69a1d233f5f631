"""TRL's trainer for conversations, with our own batches for packed rows and for noise on the embeddings.

Without either, its batches are the trainer's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from models.kernels.cross_entropy import IGNORED
from tasks.posttrain.conversations.collate import SEGMENTS, loader
from tasks.posttrain.conversations.layout import Layout
from tasks.posttrain.conversations.noise import EmbeddingNoise
from tasks.posttrain.conversations.speed import Speed
from tasks.posttrain.token_means import ExactMeans


class ConversationTrainer(ExactMeans):
    """Mixed into TRL's SFTTrainer, before it. `lay_out` must be called before training."""

    means_over: ClassVar = {"loss": "tokens"}
    layout: Layout
    packed = False
    noise: EmbeddingNoise | None = None
    speed: Speed

    def lay_out(self, layout: Layout, speed: Speed, noise: EmbeddingNoise | None, *, packed: bool) -> None:
        """Set how the rows of micro-batches are built, and what measures them."""
        self.layout, self.speed, self.noise, self.packed = layout, speed, noise, packed
        self.add_callback(speed)

    def weigh(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Supervised tokens."""
        return {"tokens": (inputs["labels"][:, 1:] != IGNORED).sum()}

    def row_losses(self, inputs: Mapping[str, Tensor], outputs: Any) -> Tensor:
        """For each row, the sum of the losses of TRL's fused head and the number of supervised tokens."""
        return torch.stack([-outputs.log_probs.double().sum(-1), outputs.label_mask.double().sum(-1)], dim=-1)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The micro-batches of this process."""
        if not self.packed and self.noise is None:
            return super().get_train_dataloader()
        batches = self.layout.of_process(self.args.process_index // self.context_parallel)
        pad_id: Any = self.processing_class.pad_token_id
        return loader(self.train_dataset, batches, pad_id, packed=self.packed)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **settings: Any) -> Any:
        """TRL's loss, with noise for the conversations of these inputs."""
        segments = inputs.pop(SEGMENTS, ())
        if self.noise is not None:
            self.noise.segments = segments
        return super().compute_loss(model, inputs, *args, **settings)
