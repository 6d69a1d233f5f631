"""What the engines made of torch's own parts share: the step, the global norm, states by pieces, the whole model.

Ranks lie in a mesh of data × pipeline × tensor, the tensor's neighbours closest, since they talk most.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from models.presets import ModelShape
from models.transformer import Transformer
from tasks.pretrain.engines.base import Engine, MicroBatch
from tasks.pretrain.engines.compiled import compile_blocks
from tasks.pretrain.engines.shard_layout import Piece, local
from tasks.pretrain.engines.states import load_states, save_states, save_states_behind
from tasks.pretrain.engines.tensor import cut_for_rank, piece_of
from tasks.pretrain.recipe.optimizers import new_optimizer, set_learning_rate
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World


class NativeEngine(Engine):
    """Weights stay in float32, and so do optimizer states; a lower precision is that of matrix products."""

    def __init__(self, spec: TrainSpec, world: World) -> None:
        runtime = spec.runtime
        self.pipeline_parallel, self.tensor_parallel = (
            runtime.pretrain.pipeline_parallel,
            runtime.pretrain.tensor_parallel,
        )
        super().__init__(spec, world, model_ranks=self.pipeline_parallel * self.tensor_parallel)
        sizes = {**self.data_sizes(), "pipeline": self.pipeline_parallel, "tensor": self.tensor_parallel}
        self.mesh: DeviceMesh = init_device_mesh(world.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        self.pipeline_rank = self.mesh.get_local_rank("pipeline")
        self.tensor_rank = self.mesh.get_local_rank("tensor")
        with torch.device("meta"):  # no memory for what other ranks hold
            self.model = self.new_model()
        if self.tensor_parallel > 1:
            cut_for_rank(self.model, self.mesh["tensor"])
        if runtime.pretrain.compile != "off":
            compile_blocks(self.model, runtime.pretrain.compile)
        self.parameters: dict[str, tuple[nn.Parameter, Piece]] = {}
        self.module = self.spread()
        self.optimizer = new_optimizer(self.config, self.model)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self.dtype == torch.float16)
        # CUDA graphs write gradients into memory of their own, over those of the micro-batch before: such a gradient is
        # added to one that is there already
        self.keeps_gradients = runtime.pretrain.compile == "reduce-overhead"
        if self.keeps_gradients:
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)

    def data_sizes(self) -> dict[str, int]:
        """How the data ranks lie in the mesh, by dimension."""
        return {"data": self.data_ranks}

    @abstractmethod
    def spread(self) -> nn.Module:
        """Put `self.model`, cut for tensor parallelism and not filled yet, to work; what to call for a loss."""

    def fill(self, device: torch.device) -> None:
        """Give this rank's part of the model memory and its initial weights, those that one process would have.

        Each parameter is drawn whole on the CPU, one after the other, and a piece of it kept.
        """
        self.model.to_empty(device=device)
        ends = [getattr(self.model, name) for name in ("embedding", "head")]
        if self.spec.shape.tie_embeddings and all(hasattr(end, "weight") for end in ends):
            self.model.head.weight = self.model.embedding.weight  # memory was given to each of the two
        self.parameters = {
            self.whole_name(name): (parameter, self.held_piece(self.whole_name(name), parameter))
            for name, parameter in self.model.named_parameters()
        }
        torch.manual_seed(self.config.seed)
        whole = cast(Transformer, _Drawn(self.spec.shape, self.parameters))
        Transformer.initialise(whole, mup_base_width=self.config.mup_base_width)

    def whole_name(self, name: str) -> str:
        """The name in the whole model of a parameter of `self.model`."""
        return name

    def held_piece(self, name: str, parameter: nn.Parameter) -> Piece:
        """What this rank holds of a parameter."""
        return piece_of(name, self.spec.shape, rank=self.tensor_rank, ranks=self.tensor_parallel) or Piece.whole(
            parameter
        )

    def copies(self, name: str) -> int:
        """Ranks that hold the same piece of a parameter as this one."""
        cut = piece_of(name, self.spec.shape, rank=0, ranks=self.tensor_parallel) is not None
        return self.data_ranks if cut else self.data_ranks * self.tensor_parallel

    def speaks_for(self, name: str) -> bool:
        """Whether this rank is the one, of those that hold the same piece, that hands it on."""
        cut = piece_of(name, self.spec.shape, rank=0, ranks=self.tensor_parallel) is not None
        return self.data_rank == 0 and (cut or self.tensor_rank == 0)

    def step(self, batches: list[MicroBatch], learning_rate: float) -> tuple[Tensor, Tensor]:
        """As in the interface."""
        set_learning_rate(self.optimizer.param_groups, learning_rate)
        total = self.backward(batches)
        self.scaler.unscale_(self.optimizer)
        norm = self.clip()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=not self.keeps_gradients)
        return total, norm

    def backward(self, batches: list[MicroBatch]) -> Tensor:
        """Gradients of a step, averaged over data ranks; the loss of this rank's share of it."""
        total = torch.zeros((), device=self.world.device)
        weights = self.weights(batches)
        for number, batch in enumerate(batches):
            if self.keeps_gradients:
                torch.compiler.cudagraph_mark_step_begin()  # what graphs gave before may be written over
            with self.synced(last=number == len(batches) - 1), self.autocast():
                loss = self.module(*batch)
                if weights is not None:
                    loss = loss * weights[number]
                self.scaler.scale(loss / len(batches)).backward()
            total += loss.detach()
        return total / len(batches)

    def synced(self, *, last: bool) -> AbstractContextManager[object]:
        """Around each micro-batch: when gradients go to the other data ranks."""
        return nullcontext()

    @torch.no_grad()
    def clip(self) -> Tensor:
        """Scale gradients to the profile's largest global norm; the norm before, each of its numbers counted once."""
        by_copies: dict[int, list[Tensor]] = {}
        for name, (parameter, _) in self.parameters.items():
            if parameter.grad is not None:
                by_copies.setdefault(self.copies(name), []).append(local(parameter.grad))
        squares = torch.zeros((), device=self.world.device)
        for copies, gradients in by_copies.items():
            squares += torch.nn.utils.get_total_norm(gradients) ** 2 / (copies if self.shares_model else 1)
        norm = (self.world.sum(squares) if self.shares_model else squares).sqrt()
        scale = (self.config.gradient_clip / (norm + 1e-6)).clamp(max=1.0)
        for gradients in by_copies.values():
            torch._foreach_mul_(gradients, scale.to(gradients[0].device))
        return norm

    @property
    def shares_model(self) -> bool:
        """Whether ranks hold different parts of the model."""
        return self.pipeline_parallel * self.tensor_parallel > 1

    @torch.no_grad()
    def loss(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """As in the interface."""
        with self.autocast():
            measured: Tensor = self.model(ids_BT, targets_BT)
        return measured

    def save(self, folder: Path) -> None:
        """A file a rank, under the names and shapes of the whole model."""
        save_states(folder, self.parameters, self.optimizer, self.scaler.state_dict())

    saves_behind = True

    def save_behind(self, folder: Path) -> Future[None]:
        """As in the interface."""
        return save_states_behind(folder, self.parameters, self.optimizer, self.scaler.state_dict())

    def load(self, folder: Path) -> None:
        """As in the interface."""
        scale = load_states(folder, self.parameters, self.optimizer, self.scaler.state_dict())
        if scale:
            self.scaler.load_state_dict(scale)

    @torch.no_grad()
    def whole_model(self) -> Transformer | None:
        """As in the interface. One parameter is gathered at a time, on the device."""
        names = whole_sizes(self.spec.shape)
        whole = Transformer(self.spec.shape) if self.world.first else None
        places = dict(whole.named_parameters()) if whole is not None else {}
        for name, size in names:
            gathered = self._gathered(name, size)
            if whole is not None:
                places[name].copy_(gathered)
        return whole.eval() if whole is not None else None

    def _gathered(self, name: str, size: Iterable[int]) -> Tensor:
        if not self.shares_model:
            return local(self.parameters[name][0].detach())
        gathered = torch.zeros(*size, device=self.world.device)
        if name in self.parameters and self.speaks_for(name):
            parameter, piece = self.parameters[name]
            piece.fill(gathered, local(parameter.detach()).to(self.world.device))
        torch.distributed.reduce(gathered, 0)
        return gathered


def whole_sizes(shape: ModelShape) -> list[tuple[str, torch.Size]]:
    """The parameters of the whole model in their order, a tied one once."""
    with torch.device("meta"):
        return [(name, value.shape) for name, value in Transformer(shape).named_parameters()]


class _Drawn:
    """Stands for the whole model where it is filled: each parameter lives until its piece is taken."""

    def __init__(self, shape: ModelShape, held: Mapping[str, tuple[nn.Parameter, Piece]]) -> None:
        self.shape, self.held = shape, held

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter to be filled, whole."""
        for name, size in whole_sizes(self.shape):
            drawn = torch.empty(size)
            yield name, drawn
            if name in self.held:
                parameter, piece = self.held[name]
                local(parameter.detach()).copy_(piece.of(drawn))
