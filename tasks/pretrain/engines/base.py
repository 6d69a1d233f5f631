"""The interface of all engines: an optimizer step, a loss without one, saving and loading of states.

Ranks that hold parts of one copy of the model (tensor or pipeline parallelism), or parts of the same rows (context
parallelism), see the same samples. `data_rank` of `data_ranks` says which share of the global batch this rank takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.kernels.cross_entropy import IGNORED
from models.kernels.experts import set_losses
from models.transformer import Decoder
from storage.errors import ConfigError
from tasks.pretrain.check import check_special
from tasks.pretrain.engines.initialise import new_decoder
from tasks.pretrain.engines.trained import mark_trained
from tasks.pretrain.recipe.micro_batch import rank_share
from tasks.pretrain.recipe.precision import DTYPES, precision, prepare
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World

MicroBatch = tuple[Tensor, Tensor, Tensor | None]  # ids, targets, positions


class Engine(ABC):
    """A model in training, on this rank."""

    model: Decoder  # or this rank's part of it

    def __init__(self, spec: TrainSpec, world: World, *, model_ranks: int = 1) -> None:
        """`model_ranks` consecutive processes see the same samples.

        Raises ConfigError for batches or processes that can't be divided evenly, and for settings that this engine
        does not support.
        """
        if world.size % model_ranks:
            raise ConfigError(
                f"{world.size} processes can't hold copies of a model that takes {model_ranks} of them.",
                "Choose runtime.training.processes as a multiple of tensor_parallel × pipeline_parallel × "
                "context_parallel.",
            )
        self.spec, self.config, self.world = spec, spec.config, world
        self.data_rank, self.data_ranks = world.rank // model_ranks, world.size // model_ranks
        self.micro_batch, self.micro_steps = rank_share(
            spec.config, spec.runtime.pretrain, ranks=self.data_ranks, cuda=world.device.type == "cuda"
        )
        self.precision = precision(spec, world)
        self.dtype = DTYPES[self.precision]
        check_special({self.config.optimizer, self.precision}, spec.runtime.pretrain, cuda=world.device.type == "cuda")

    @property
    def layout(self) -> Mapping[str, int | str]:
        """The format of saved states: a checkpoint loads only into an engine with the same format."""
        return {"states": "torch"}

    @abstractmethod
    def step(self, batches: list[MicroBatch], learning_rate: float) -> tuple[Tensor, Tensor]:
        """One optimizer step over this rank's micro-batches of (B, T) ids, targets and, for isolation, positions.

        Returns a loss whose mean over the ranks is the mean over the tokens of the step, and the global gradient norm
        before clipping, both still on the device. In float16 an infinite or NaN norm means that the scaled gradient
        overflowed: the scale was lowered and the step skipped.
        """

    @abstractmethod
    def loss(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """The mean loss in nats a token, without training. Every rank must call it equally often."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write weights and optimizer states into `folder`. Every rank must call it."""

    supports_async_save = False

    def save_async(self, folder: Path) -> Future[None]:
        """Like `save`, but copy first and write while training continues. Every rank must call it."""
        raise NotImplementedError

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Load what `save` wrote. Every rank must call it."""

    @abstractmethod
    def masters(self) -> list[Tensor]:
        """The tensors that the optimizer updates: this rank's shards of the weights, flat under ZeRO."""

    @property
    @abstractmethod
    def states(self) -> MutableMapping[Tensor, dict[str, Any]]:
        """The optimizer's states by these tensors."""

    @abstractmethod
    def masters_changed(self) -> None:
        """Compute with the present values of `masters` from now on. Every rank must call it."""

    @abstractmethod
    def free_states(self) -> None:
        """Free what only further steps need, so that writing the model takes no more memory than a step."""

    @abstractmethod
    def whole_model(self) -> Decoder | None:
        """The weights in float32 on the CPU, gathered from all ranks. None on every rank but the first."""

    def new_model(self) -> Decoder:
        """The model with its initial weights, the same on each rank, on torch's default device."""
        torch.manual_seed(self.config.seed)
        model = new_decoder(self.spec.shape, self.config, self.spec.base)
        model.recompute = self.spec.runtime.pretrain.recompute
        model.head.z_loss = self.config.z_loss
        set_losses(model, **self.config.router_losses)
        prepare(model, self.precision)
        mark_trained(model, self.config)
        return model

    def autocast(self) -> AbstractContextManager[object]:
        """Matrix products in the profile's precision, over float32 weights."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.world.device.type, self.dtype)

    def weights(self, batches: list[MicroBatch]) -> Tensor | None:
        """Weights that make the mean over micro-batches a mean over targets, where micro-batches differ in their number
        of targets. Without them the result would depend on how the batch is split."""
        if batches[0][2] is None and self.config.packing == "stream":
            return None  # neither isolation nor padding: every token has a target
        targets = torch.stack([(targets_BT != IGNORED).sum() for _, targets_BT, _ in batches]).float()
        return targets / self.world.mean(targets.mean())  # over all ranks, which may differ too
