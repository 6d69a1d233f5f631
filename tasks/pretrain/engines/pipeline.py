"""Pipeline parallelism: each rank holds consecutive blocks, and micro-batches flow through them (1F1B).

torch.distributed.pipelining moves activations and gradients, with at most as many micro-batches in flight as stages
(Narayanan et al. 2021, PipeDream-Flush). A stage is the plain model without the layers of other stages. A tied
embedding is in the first and the last stage: both copies get the sum of both gradients, and so stay equal.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from models.kernels.cross_entropy import IGNORED
from models.presets import blocks_of_stage
from models.transformer import Transformer
from tasks.pretrain.engines.base import MicroBatch
from tasks.pretrain.engines.native import NativeEngine
from tasks.pretrain.setup import check_pipeline
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World

TIED = {"head.weight": "embedding.weight"}


class PipelineEngine(NativeEngine):
    """Each stage is replicated on all data ranks. Gradients are averaged over them at the end of a step."""

    def __init__(self, spec: TrainSpec, world: World) -> None:
        super().__init__(spec, world)
        check_pipeline(self.pipeline_parallel, self.micro_steps)
        self.schedules: dict[object, Schedule1F1B] = {}
        self.tied = self._tied_group()

    def parallelize(self) -> nn.Module:
        model, stages = cast(Transformer, self.model), self.pipeline_parallel
        depth = model.shape.depth
        mine = blocks_of_stage(depth, stages, self.pipeline_rank)
        self.first_block = mine.start
        self.is_first, self.is_last = self.pipeline_rank == 0, self.pipeline_rank == stages - 1
        model.blocks = nn.ModuleList(list(model.blocks)[mine.start : mine.stop])
        if not self.is_first:
            model.add_module("embedding", _Identity())
            model.positions = None
        if not self.is_last:
            model.add_module("norm", _Identity())
            model.add_module("head", _Identity())
        self.initialise(self.world.device)
        return _Stage(self)

    def whole_name(self, name: str) -> str:
        """As in NativeEngine, with block numbers of the whole model. A tied output layer is the embedding."""
        if name.startswith("blocks."):
            _, number, rest = name.split(".", 2)
            return f"blocks.{int(number) + self.first_block}.{rest}"
        return TIED.get(name, name) if self.spec.own_shape.tie_embeddings else name

    def copies(self, name: str) -> int:
        """As in NativeEngine, but a tied embedding is in two stages."""
        return super().copies(name) * (2 if self._is_tied(name) else 1)

    def is_source(self, name: str) -> bool:
        """As in NativeEngine. A tied embedding comes from the first stage."""
        return super().is_source(name) and (self.is_first or not self._is_tied(name))

    def backward(self, batches: list[MicroBatch]) -> Tensor:
        """Only the last stage has a loss. It is multiplied by the number of stages, so that the mean over all ranks is
        right."""
        weights = self.weights(batches)
        # One batch: the schedule cuts it into the same micro-batches again
        ids, targets, positions = (
            None if parts[0] is None else torch.cat(parts) for parts in zip(*batches, strict=True)
        )
        assert ids is not None
        # A weight is a micro-batch's number of targets over the mean of all, which the loss function needs back
        mean = None if weights is None else _targets(batches[0][1]) / weights[0]
        losses: list[Tensor] = []
        arguments: dict[str, Any] = {} if positions is None else {"positions_BT": positions}
        if self.is_last:  # `targets_BT` is the stage's own argument, the others are the schedule's
            arguments |= {"targets_BT": targets, "target": targets, "losses": losses, "loss_kwargs": {"mean": mean}}
        schedule = self._schedule(len(batches), ids.shape, positions is not None)
        schedule.step(*((ids,) if self.is_first else ()), return_outputs=False, **arguments)
        self._share_gradients()
        if not self.is_last:
            return torch.zeros((), device=self.world.device)
        return torch.stack(losses).detach().sum() * self.pipeline_parallel

    def _schedule(self, micro_batches: int, size: torch.Size, isolated: bool) -> Schedule1F1B:
        """The schedule for inputs of this size: a stage infers the sizes of its inputs only once."""
        key = (micro_batches, size, isolated)
        if key not in self.schedules:
            stage = PipelineStage(
                self.module,
                self.pipeline_rank,
                self.pipeline_parallel,
                self.world.device,
                group=self.mesh.get_group("pipeline"),
            )

            # The stage has computed the loss already: what is left is the micro-batch's share of the step
            def share(loss: Tensor, targets_BT: Tensor, mean: Tensor | None) -> Tensor:
                if mean is not None:
                    loss = loss * (_targets(targets_BT) / mean)
                return loss / micro_batches

            # `share` divides by the number of micro-batches, so the schedule must not divide gradients again
            self.schedules[key] = Schedule1F1B(stage, micro_batches, loss_fn=share, scale_grads=False)
        return self.schedules[key]

    def _share_gradients(self) -> None:
        """Sum the gradients of a tied embedding over its two stages, then average all gradients over data ranks."""
        for name, (parameter, _) in self.parameters.items():
            if self.tied is not None and self._is_tied(name):
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad, group=self.tied)
        if self.data_ranks == 1:
            return
        gradients = [held.grad for held, _ in self.parameters.values() if held.grad is not None]
        group = self.mesh.get_group("replicas")
        for work in [dist.all_reduce(gradient, group=group, async_op=True) for gradient in gradients]:
            work.wait()
        torch._foreach_div_(gradients, self.data_ranks)

    @torch.no_grad()
    def loss(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """As in NativeEngine, one batch at a time: each stage waits for the one before, and all get the last's loss."""
        group = self.mesh.get_group("pipeline")
        x = ids_BT
        if not self.is_first:
            x = torch.empty(*ids_BT.shape, self.spec.own_shape.width, device=self.world.device)
            dist.recv(x, group=group, group_src=self.pipeline_rank - 1)
        y: Tensor = self.module(x, targets_BT=targets_BT if self.is_last else None)
        if not self.is_last:
            dist.send(y, group=group, group_dst=self.pipeline_rank + 1)
            y = torch.zeros((), device=self.world.device)
        dist.broadcast(y, group=group, group_src=self.pipeline_parallel - 1)
        return y

    def _is_tied(self, name: str) -> bool:
        return self.spec.own_shape.tie_embeddings and name in TIED.values()

    def _tied_group(self) -> dist.ProcessGroup | None:
        """The first and last stage of this rank's pipeline. Every rank creates every group, as torch requires."""
        if not self.spec.own_shape.tie_embeddings:
            return None
        mine = None
        ranks = self.mesh.mesh
        for data in range(self.data_ranks):
            for tensor in range(self.tensor_parallel):
                ends = [int(ranks[data, stage, tensor]) for stage in (0, self.pipeline_parallel - 1)]
                group = dist.new_group(ends)
                if self.world.rank in ends:
                    mine = group
        return mine


class _Identity(nn.Module):
    """Identity in place of a layer of another stage."""

    def forward(self, x: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        return x


class _Stage(nn.Module):
    """A stage's part of the model under autocast. Returns activations, or in the last stage the loss."""

    def __init__(self, engine: PipelineEngine) -> None:
        super().__init__()
        self.model, self.autocast = engine.model, engine.autocast

    def forward(self, x: Tensor, positions_BT: Tensor | None = None, targets_BT: Tensor | None = None) -> Tensor:
        with self.autocast():
            y: Tensor = self.model(x, targets_BT, positions_BT)
        return y


def _targets(targets_BT: Tensor) -> Tensor:
    return (targets_BT != IGNORED).sum()
