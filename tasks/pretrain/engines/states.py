"""Weights and optimizer states in torch's distributed checkpoint, stored as whole tensors.

Each rank writes its shards and reads those that it needs, so that the number of ranks and the sharding may change in
between. Nothing is gathered. torch's own planners only know tensors sharded into one even part a rank. The planners
here know `ShardLayout`s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from storage.errors import TrainingError
from tasks.pretrain.engines.async_save import save_async
from tasks.pretrain.engines.shard_layout import ShardLayout, local
from tasks.training.states_only import states_only

Held = tuple[Tensor, ShardLayout]
Parameters = Mapping[str, tuple[nn.Parameter, ShardLayout]]
GROUPS, LOSS_SCALE = "optimizer groups", "loss scale"


def save_states(
    folder: Path, parameters: Parameters, optimizer: torch.optim.Optimizer, scale: Mapping[str, int | float]
) -> None:
    """Write this rank's shards of weights and optimizer states, by the names of the whole model's parameters, and the
    state of the loss scale, if any."""
    tensors, planner = _own_states(parameters, optimizer, scale)
    save(tensors, checkpoint_id=folder, planner=planner)


def save_states_async(
    folder: Path, parameters: Parameters, optimizer: torch.optim.Optimizer, scale: Mapping[str, int | float]
) -> Future[None]:
    """Like `save_states`, but write while training continues (async_save.py)."""
    tensors, planner = _own_states(parameters, optimizer, scale)
    return save_async(tensors, folder, planner)


def _own_states(
    parameters: Parameters, optimizer: torch.optim.Optimizer, scale: Mapping[str, int | float]
) -> tuple[dict[str, Tensor], _ShardSaver]:
    states: dict[str, Held] = {name: (local(held.detach()), layout) for name, (held, layout) in parameters.items()}
    for name, (held, layout) in parameters.items():
        for key, value in optimizer.state.get(held, {}).items():
            states[_state_name(name, key)] = _held(name, key, value, held, layout)
    for number, group in enumerate(optimizer.param_groups):
        for key, value in _numbers(group).items():
            tensor = torch.tensor(value, dtype=torch.float64)  # exact for Python's floats
            states[f"{GROUPS}/{number}/{key}"] = (tensor, ShardLayout.whole(tensor))
    for key, value in scale.items():
        tensor = torch.tensor(value, dtype=torch.float64)
        states[f"{LOSS_SCALE}/{key}"] = (tensor, ShardLayout.whole(tensor))
    return {name: tensor for name, (tensor, _) in states.items()}, _ShardSaver(_layouts(states))


def load_states(
    folder: Path, parameters: Parameters, optimizer: torch.optim.Optimizer, scale: Mapping[str, int | float]
) -> dict[str, int | float]:
    """Load what `save_states` wrote, on any number of ranks. Returns the state of the loss scale, shaped like `scale`.

    Raises TrainingError for states missing from the files.
    """
    with states_only():
        stored = FileSystemReader(folder).read_metadata().state_dict_metadata
    states: dict[str, Held] = {name: (local(held.detach()), layout) for name, (held, layout) in parameters.items()}
    # A fresh optimizer is without states: allocate those that the files have, for `load` to fill in place
    by_name: dict[str, list[str]] = {}
    for name in stored:
        owner, slash, key = name.partition("/")
        if slash and owner in parameters:
            by_name.setdefault(owner, []).append(key)
    for name, keys in by_name.items():
        held, layout = parameters[name]
        like_parameter = {key for key in keys if _size(stored[_state_name(name, key)])}
        for key in keys:
            value = torch.zeros_like(held) if key in like_parameter else torch.zeros((), device=_counter(optimizer))
            optimizer.state[held][key] = value
            states[_state_name(name, key)] = _held(name, key, value, held, layout)
    numbers = [torch.zeros((), dtype=torch.float64) for group in optimizer.param_groups for _ in _numbers(group)]
    places = [(number, key) for number, group in enumerate(optimizer.param_groups) for key in _numbers(group)]
    for (number, key), tensor in zip(places, numbers, strict=True):
        states[f"{GROUPS}/{number}/{key}"] = (tensor, ShardLayout.whole(tensor))
    scales = {key: torch.zeros((), dtype=torch.float64) for key in scale}
    for key, tensor in scales.items():
        states[f"{LOSS_SCALE}/{key}"] = (tensor, ShardLayout.whole(tensor))
    missing = states.keys() - stored.keys()
    if missing:
        raise TrainingError(
            f"The checkpoint {folder} lacks {', '.join(sorted(missing)[:3])}.",
            f"Delete {folder.parent} to start from scratch.",
        )
    tensors = {name: tensor for name, (tensor, _) in states.items()}
    with states_only():
        load(tensors, checkpoint_id=folder, planner=_ShardLoader(_layouts(states)))
    for (number, key), tensor in zip(places, numbers, strict=True):
        group = optimizer.param_groups[number]
        group[key] = type(group[key])(tensor.item())
    return {key: type(scale[key])(tensor.item()) for key, tensor in scales.items()}


def _state_name(name: str, key: str) -> str:
    return f"{name}/{key}"


def _held(name: str, key: str, value: Any, parameter: nn.Parameter, layout: ShardLayout) -> Held:
    if isinstance(value, Tensor) and value.shape == parameter.shape:
        return local(value), layout
    if isinstance(value, Tensor) and not value.dim():
        return value, ShardLayout.whole(value)
    raise TrainingError(
        f"The optimizer's {key} of {name} is neither a number nor shaped as the parameter, and can't be saved.",
        "Choose another optimizer, or runtime.pretrain.engine=deepspeed.",
    )


def _numbers(group: Mapping[str, Any]) -> dict[str, int | float]:
    """The numbers of a parameter group. Flags, which say how it computes, are not saved."""
    return {
        key: value for key, value in group.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _counter(optimizer: torch.optim.Optimizer) -> torch.device:
    """The device of the optimizer's step counters: that of the parameters if it is fused."""
    group = next(group for group in optimizer.param_groups if group["params"])  # a pipeline stage may lack a kind
    on_device = group.get("fused") or group.get("capturable")
    device: torch.device = group["params"][0].device
    return device if on_device else torch.device("cpu")


def _size(stored: object) -> tuple[int, ...]:
    return tuple(stored.size) if isinstance(stored, TensorStorageMetadata) else ()


def _layouts(states: Mapping[str, Held]) -> dict[str, ShardLayout]:
    return {name: layout for name, (_, layout) in states.items()}


def _views(
    tensors: Mapping[str, Any], layouts: Mapping[str, ShardLayout]
) -> Iterator[tuple[str, MetadataIndex, Tensor]]:
    for name, layout in layouts.items():
        for offsets, view in layout.chunks(tensors[name]):
            yield name, MetadataIndex(name, torch.Size(offsets)), view


class _ShardSaver(DefaultSavePlanner):
    """Writes each range of a shard as a chunk. Replicated chunks are planned by every rank, and written by one."""

    def __init__(self, layouts: Mapping[str, ShardLayout]) -> None:
        super().__init__(flatten_state_dict=False)
        self.layouts = layouts

    def create_local_plan(self) -> SavePlan:
        """The chunks that this rank holds. torch then assigns each duplicate to one rank (`dedup_save_plans`)."""
        self.views: dict[MetadataIndex, Tensor] = {}
        items = []
        for name, index, view in _views(self.state_dict, self.layouts):
            self.views[index] = view
            chunk = ChunkStorageMetadata(offsets=index.offset or torch.Size(), sizes=view.shape)
            data = TensorWriteData(chunk, TensorProperties.create_from_tensor(view), self.layouts[name].size)
            items.append(WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=data))
        self.plan = SavePlan(items)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        """The data of a chunk."""
        return self.views[write_item.index].detach()


class _ShardLoader(DefaultLoadPlanner):
    """Reads the parts of stored chunks that overlap the ranges of a shard."""

    def __init__(self, layouts: Mapping[str, ShardLayout]) -> None:
        super().__init__(flatten_state_dict=False)
        self.layouts = layouts

    def create_local_plan(self) -> LoadPlan:
        """The stored chunks that this rank needs."""
        assert self.metadata is not None
        self.views: dict[MetadataIndex, Tensor] = {}
        chunks: dict[str, list[ChunkStorageMetadata]] = {}
        for name, index, view in _views(self.state_dict, self.layouts):
            self.views[index] = view
            chunks.setdefault(name, []).append(ChunkStorageMetadata(index.offset or torch.Size(), view.shape))
        items: list[ReadItem] = []
        for name, wanted in chunks.items():
            stored = self.metadata.state_dict_metadata[name]
            assert isinstance(stored, TensorStorageMetadata)
            items += create_read_items_for_chunk_list(name, stored, wanted)
        return LoadPlan(items)

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """The destination of a chunk."""
        view = self.views[read_item.dest_index].detach()
        place = zip(read_item.dest_offsets, read_item.lengths, strict=True)
        return view[tuple(slice(at, at + length) for at, length in place)]
