"""The base of the engines without DeepSpeed: the step, the global gradient norm, sharded states, the whole model.

Ranks form a mesh of replicas × pipeline × tensor. Tensor-parallel ranks are consecutive, since they communicate most.
Replicas hold the same weights, or shards of them, and average their gradients: they have different rows, or with
context parallelism different tokens of the same rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, MutableMapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from models.kernels.cross_entropy import IGNORED
from models.presets import ModelShape
from models.transformer import Decoder, Transformer, share_of_tokens
from tasks.pretrain.engines.base import Engine, MicroBatch
from tasks.pretrain.engines.initialise import allocate, empty_decoder, initial_weights, whole_sizes
from tasks.pretrain.engines.owners import Owners
from tasks.pretrain.engines.parallel.context import share_context
from tasks.pretrain.engines.parallel.tensor import layout_of, shard_model
from tasks.pretrain.engines.shard_layout import ShardLayout, local
from tasks.pretrain.engines.states import load_states, save_states, save_states_async
from tasks.pretrain.recipe.optimizers import new_optimizer, set_learning_rate
from tasks.pretrain.setup import check_shares
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World

# max-autotune without CUDA graphs, which are reduce-overhead's: tuning gains nothing from them
COMPILE_MODES = {"default": None, "reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune-no-cudagraphs"}


class NativeEngine(Engine):
    """Weights and optimizer states stay in float32. A lower precision applies to matrix products only."""

    def __init__(self, spec: TrainSpec, world: World) -> None:
        runtime = spec.runtime
        self.pipeline_parallel, self.tensor_parallel = (
            runtime.pretrain.pipeline_parallel,
            runtime.pretrain.tensor_parallel,
        )
        self.context_parallel = runtime.pretrain.context_parallel
        parts = self.pipeline_parallel * self.tensor_parallel
        super().__init__(spec, world, model_ranks=parts * self.context_parallel)
        if isinstance(spec.trained_shape, ModelShape):
            check_shares(spec.trained_shape, runtime.pretrain)
        self.replica, self.replicas = world.rank // parts, world.size // parts
        sizes = {**self.replica_sizes(), "pipeline": self.pipeline_parallel, "tensor": self.tensor_parallel}
        self.mesh: DeviceMesh = init_device_mesh(world.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        self.pipeline_rank = self.mesh.get_local_rank("pipeline")
        self.tensor_rank = self.mesh.get_local_rank("tensor")
        with torch.device("meta"):  # no memory for other ranks' shards
            self.model = self.new_model()
        if self.tensor_parallel > 1:
            shard_model(cast(Transformer, self.model), self.mesh["tensor"])
        if self.context_parallel > 1:
            self._share_context(parts)
        if runtime.pretrain.compiles:
            compile_blocks(self.model, runtime.pretrain.compile)
        self.parameters: dict[str, tuple[nn.Parameter, ShardLayout]] = {}
        self.module = self.parallelize()
        group = self.owners() if self.config.optimizer == "muon" else None
        layout = Owners(self.parameters, group, world.device) if group else None
        self.optimizer = new_optimizer(self.config, self.model, layout=layout)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self.dtype == torch.float16)
        # CUDA graphs write gradients to memory of their own, which the next micro-batch overwrites. So gradients must
        # exist beforehand, to be added to
        self.keeps_gradients = runtime.pretrain.compile == "reduce-overhead"
        if self.keeps_gradients:
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)

    def replica_sizes(self) -> dict[str, int]:
        """The mesh dimensions of the replicas, with their sizes."""
        return {"replicas": self.replicas}

    def owners(self) -> ProcessGroup | None:
        """The processes that together hold each matrix of a block whole, with this one. None if it does itself."""
        return self.mesh.get_group("tensor") if self.tensor_parallel > 1 else None

    def _share_context(self, parts: int) -> None:
        sizes = {"rows": self.data_ranks, "context": self.context_parallel, "parts": parts}
        mesh = init_device_mesh(self.world.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        self.context_group = mesh.get_group("context")
        share_context(
            cast(Transformer, self.model), mesh.get_local_rank("context"), self.context_parallel, self.context_group
        )

    @abstractmethod
    def parallelize(self) -> nn.Module:
        """Wrap or shard `self.model`, still on the meta device, and initialise it. Returns the module to train."""

    def initialise(self, device: torch.device) -> None:
        """Allocate this rank's part of the model and set the initial weights, the same as with one process.

        Parameters are drawn whole on the CPU, one after the other. This rank keeps only its shard of each.
        """
        allocate(self.model, device)
        self.parameters = {
            self.whole_name(name): (parameter, self.held_layout(self.whole_name(name), parameter))
            for name, parameter in self.model.named_parameters()
        }
        initial_weights(self.spec, self._keep)

    def _keep(self, name: str, drawn: Tensor) -> None:
        """Copy this rank's shard of a parameter, if it has one."""
        if name in self.parameters:
            parameter, layout = self.parameters[name]
            local(parameter.detach()).copy_(layout.of(drawn))

    def whole_name(self, name: str) -> str:
        """The name that a parameter of `self.model` has in the whole model."""
        return name

    def held_layout(self, name: str, parameter: nn.Parameter) -> ShardLayout:
        """Which shard of a parameter this rank holds."""
        return layout_of(name, self.spec.shape, rank=self.tensor_rank, ranks=self.tensor_parallel) or ShardLayout.whole(
            parameter
        )

    def copies(self, name: str) -> int:
        """The number of ranks that hold the same shard of a parameter as this one, itself included."""
        cut = layout_of(name, self.spec.shape, rank=0, ranks=self.tensor_parallel) is not None
        return self.replicas if cut else self.replicas * self.tensor_parallel

    def is_source(self, name: str) -> bool:
        """Whether a shard is gathered from this rank, among those that hold the same one."""
        cut = layout_of(name, self.spec.shape, rank=0, ranks=self.tensor_parallel) is not None
        return self.replica == 0 and (cut or self.tensor_rank == 0)

    def step(self, batches: list[MicroBatch], learning_rate: float) -> tuple[Tensor, Tensor]:
        set_learning_rate(self.optimizer.param_groups, learning_rate)
        total = self.backward(batches)
        self.scaler.unscale_(self.optimizer)  # clipping needs true gradients. Except in float16 the scaler does nothing
        norm = self.clip()
        self.scaler.step(self.optimizer)  # skipped where a gradient overflowed
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=not self.keeps_gradients)
        return total, norm

    def backward(self, batches: list[MicroBatch]) -> Tensor:
        """Compute the gradients of a step, averaged over replicas. Returns the loss of this rank's share."""
        batches = [(ids_BT, self._mine(targets_BT), positions_BT) for ids_BT, targets_BT, positions_BT in batches]
        total = torch.zeros((), device=self.world.device)
        weights = self.weights(batches)
        for number, batch in enumerate(batches):
            if self.keeps_gradients:
                torch.compiler.cudagraph_mark_step_begin()  # earlier outputs may be overwritten
            with self.gradient_sync(last=number == len(batches) - 1):
                with self.autocast():
                    loss = self.module(*batch)
                if weights is not None:
                    loss = loss * weights[number]
                self.scaler.scale(loss / len(batches)).backward()
            total += loss.detach()
        return total / len(batches)

    def _mine(self, targets_BT: Tensor) -> Tensor:
        """The targets of this rank's tokens."""
        return targets_BT[:, share_of_tokens(targets_BT.shape[1], self.model.share)]

    def gradient_sync(self, *, last: bool) -> AbstractContextManager[object]:
        """The context of each micro-batch, for engines that delay the all-reduce to the last one."""
        return nullcontext()

    @torch.no_grad()
    def clip(self) -> Tensor:
        """Clip gradients to the profile's maximum global norm. Returns the norm before, which counts each number of the
        whole model once."""
        by_copies: dict[int, list[Tensor]] = {}  # local gradients, by how many ranks hold the same ones
        for name, (parameter, _) in self.parameters.items():
            if parameter.grad is not None:
                by_copies.setdefault(self.copies(name), []).append(local(parameter.grad))
        squares = torch.zeros((), device=self.world.device)
        # The sum over ranks adds the squares of a shard once for each copy, so each copy contributes its part. Without
        # shards every rank has all gradients, averaged already: no communication
        for copies, gradients in by_copies.items():
            squares += torch.nn.utils.get_total_norm(gradients) ** 2 / (copies if self.is_sharded else 1)
        norm = (self.world.sum(squares) if self.is_sharded else squares).sqrt()
        # As torch's clip_grad_norm_. The norm stays on the device: a test on it would wait for the GPU
        scale = (self.config.gradient_clip / (norm + 1e-6)).clamp(max=1.0)
        for gradients in by_copies.values():
            torch._foreach_mul_(gradients, scale.to(gradients[0].device))
        return norm

    @property
    def is_sharded(self) -> bool:
        """Whether ranks hold different shards of the model."""
        return self.pipeline_parallel * self.tensor_parallel > 1

    @torch.no_grad()
    def loss(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        mine_BT = self._mine(targets_BT)
        with self.autocast():
            measured: Tensor = self.model(ids_BT, mine_BT)
        if self.context_parallel == 1:
            return measured
        # Parts of a row may differ in their number of targets, so means are weighted by it
        count = (mine_BT != IGNORED).sum()
        both = torch.stack((measured * count, count.to(measured.dtype)))
        torch.distributed.all_reduce(both, group=self.context_group)
        return both[0] / both[1].clamp(min=1)

    def trained(self) -> dict[str, tuple[nn.Parameter, ShardLayout]]:
        """The parameters with states, by their names in the whole model, and this rank's shard of each."""
        return {name: held for name, held in self.parameters.items() if held[0].requires_grad}

    def save(self, folder: Path) -> None:
        """Write one file per rank, by the names and shapes of the whole model."""
        save_states(folder, self.trained(), self.optimizer, self.scaler.state_dict())

    supports_async_save = True

    def save_async(self, folder: Path) -> Future[None]:
        return save_states_async(folder, self.trained(), self.optimizer, self.scaler.state_dict())

    def load(self, folder: Path) -> None:
        scale = load_states(folder, self.trained(), self.optimizer, self.scaler.state_dict())
        if scale:
            self.scaler.load_state_dict(scale)

    def masters(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    @property
    def states(self) -> MutableMapping[Tensor, dict[str, Any]]:
        return self.optimizer.state

    def masters_changed(self) -> None:
        """Nothing: they are the model's parameters."""

    def free_states(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()

    @torch.no_grad()
    def whole_model(self) -> Decoder | None:
        """Gather on the device, one parameter at a time."""
        names = whole_sizes(self.spec.shape)
        whole = empty_decoder(self.spec, torch.device("cpu")) if self.world.first else None
        places = dict(whole.named_parameters()) if whole is not None else {}
        for name, size in names:
            gathered = self._gathered(name, size)
            if whole is not None:
                places[name].copy_(gathered)
        return whole.eval() if whole is not None else None

    def _gathered(self, name: str, size: Iterable[int]) -> Tensor:
        if not self.is_sharded:
            return local(self.parameters[name][0].detach())
        # Each number comes from exactly one rank and is zero on the others, so a sum gathers shards of any layout
        gathered = torch.zeros(*size, device=self.world.device)
        if name in self.parameters and self.is_source(name):
            parameter, layout = self.parameters[name]
            layout.fill(gathered, local(parameter.detach()).to(self.world.device))
        torch.distributed.reduce(gathered, 0)
        return gathered


def compile_blocks(model: Decoder, how: str) -> None:
    """Compile each block for training, with `how` as in runtime.pretrain.compile.

    One compilation serves all blocks, and an engine's hooks stay outside. Compiling the whole model took 1.5 times as
    long and ran no faster (5.5M parameters, one CPU thread).
    """
    from torch._dynamo import config  # takes seconds to import

    # It would split each block at DDP's buckets to overlap all-reduce, which overlaps between blocks anyway
    config.optimize_ddp = False
    for block in model.blocks:
        block.forward = _with_gradients_only(torch.compile(block.forward, mode=COMPILE_MODES[how]), block.forward)


def _with_gradients_only(compiled: Callable[..., Tensor], eager: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`compiled` in training, `eager` without gradients: compiling again for validation would take longer than all
    validation, insight can hook into eager attention, and with CUDA graphs each block would overwrite its predecessor's
    output."""

    def forward(*args: Tensor) -> Tensor:
        return compiled(*args) if torch.is_grad_enabled() else eager(*args)

    return forward
