"""A whole model in each process: torch's own DistributedDataParallel, nothing sharded, nothing to compile.

Weights stay in float32; in bfloat16 only the matrix products are (autocast). States are saved by torch's distributed
checkpoint under the names of the parameters, so that another number of processes loads them.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel

from models.transformer import Transformer
from tasks.pretrain.background import save_behind
from tasks.pretrain.engines.base import Engine, MicroBatch
from tasks.pretrain.optimizers import new_optimizer
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World


class DdpEngine(Engine):
    """Gradients are averaged over the processes while the backward pass still runs (Li et al. 2020)."""

    def __init__(self, spec: TrainSpec, world: World) -> None:
        super().__init__(spec, world)
        self.model = self.new_model().to(world.device)
        self.module: nn.Module = DistributedDataParallel(self.model) if world.size > 1 else self.model
        self.optimizer = new_optimizer(self.config, self.model)

    def step(self, batches: list[MicroBatch], learning_rate: float) -> tuple[Tensor, Tensor]:
        """As in the interface."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        total = torch.zeros((), device=self.world.device)
        weights = self.weights(batches)
        for number, batch in enumerate(batches):
            with self._synced(last=number == len(batches) - 1), self.autocast():
                loss = self.module(*batch)
                if weights is not None:
                    loss = loss * weights[number]
                (loss / len(batches)).backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.gradient_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total / len(batches), norm.detach()

    def _synced(self, *, last: bool) -> AbstractContextManager[object]:
        """Gradients go to the others once a step, with the last micro-batch."""
        if last or not isinstance(self.module, DistributedDataParallel):
            return nullcontext()
        return self.module.no_sync()

    @torch.no_grad()
    def loss(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """As in the interface."""
        with self.autocast():
            measured: Tensor = self.model(ids_BT, targets_BT)
        return measured

    def save(self, folder: Path) -> None:
        """A file a rank, by parameter names."""
        save(self._states(), checkpoint_id=folder)

    saves_behind = True

    def save_behind(self, folder: Path) -> Future[None]:
        """As in the interface."""
        return save_behind(self._states(), folder)

    def load(self, folder: Path) -> None:
        """As in the interface."""
        states = self._states()
        load(states, checkpoint_id=folder)
        set_state_dict(
            self.model, self.optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"]
        )

    def _states(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def whole_model(self) -> Transformer | None:
        """As in the interface."""
        if not self.world.first:
            return None
        whole = Transformer(self.spec.shape)
        whole.load_state_dict({name: value.float().cpu() for name, value in self.model.state_dict().items()})
        return whole.eval()
