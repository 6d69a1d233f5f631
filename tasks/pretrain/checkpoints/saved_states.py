"""Reads a checkpoint back from disk: is every parameter there, in its shape, with finite numbers?

Files are memory-mapped and read tensor by tensor, so that memory never holds a second copy of the model. They are
pickles: only classes of states are unpickled (tasks/training/states_only.py).

Two formats are known. torch's distributed checkpoint stores each parameter and its optimizer states by name. DeepSpeed
stores weights by name. ZeRO's optimizer states, and at stage 3 the weights too, are flat vectors, each rank's part in a
file of its own, with the addresses beside them or following from the shapes.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.training.states_only import load_states, states_only

Shapes = Mapping[str, tuple[int, ...]]
# What torch raises for a truncated file or another format
NOT_FINITE = "NaN or infinity"  # what a diverged training leaves
UNREADABLE = (RuntimeError, OSError, EOFError, pickle.UnpicklingError, KeyError, ValueError, AttributeError)


@dataclass
class Finding:
    """The findings about one parameter, in one file or in several."""

    shape: tuple[int, ...] | None = None
    squares: float = 0.0  # sum of squared weights, NaN or infinity if any weight is
    states: bool = False  # whether there are optimizer states
    state_squares: float = 0.0


def read_back(
    folder: Path, layout: Mapping[str, Any], expected: Shapes, *, rank: int, ranks: int
) -> dict[str, Finding]:
    """The findings of this rank's share of `folder`. `merge` combines the shares.

    Raises one of UNREADABLE for a file that can't be read.
    """
    if layout["states"] == "deepspeed":
        return _read_deepspeed(folder, rank, ranks)
    return _read_torch(folder, sorted(expected)[rank::ranks])


def merge(parts: Iterable[Mapping[str, Finding]]) -> dict[str, Finding]:
    """The findings of all ranks combined."""
    whole: dict[str, Finding] = {}
    for part in parts:
        for name, finding in part.items():
            known = whole.setdefault(name, Finding())
            known.shape = known.shape or finding.shape
            known.squares += finding.squares
            known.states |= finding.states
            known.state_squares += finding.state_squares
    return whole


def problems(findings: Mapping[str, Finding], expected: Shapes) -> list[str]:
    """One sentence for each faulty parameter, none for sound states."""
    wrong = []
    for name, shape in expected.items():
        seen = findings.get(name)
        if seen is None or seen.shape is None:
            wrong.append(f"the parameter {name} is missing")
        elif seen.shape != shape:
            wrong.append(f"the parameter {name} has the shape {seen.shape} instead of {shape}")
        elif not math.isfinite(seen.squares):
            wrong.append(f"the parameter {name} holds {NOT_FINITE}")
        elif len(shape) > 1 and seen.squares == 0:
            wrong.append(f"the matrix {name} is all zeros")
        elif not seen.states:
            wrong.append(f"the optimizer states of {name} are missing")
        elif not math.isfinite(seen.state_squares):
            wrong.append(f"the optimizer states of {name} hold {NOT_FINITE}")
    return wrong


def _squares(tensor: Tensor) -> float:
    """Sum of squares, NaN if any number is."""
    return float(torch.linalg.vector_norm(tensor.detach().float())) ** 2 if tensor.numel() else 0.0


def _read_torch(folder: Path, names: Sequence[str]) -> dict[str, Finding]:
    """Read parameter by parameter: sharded ones are assembled one at a time."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    with states_only():
        saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {name: value for name, value in saved.items() if isinstance(value, TensorStorageMetadata)}
    findings = {}
    for name in names:
        if name not in tensors:
            continue
        states = [other for other in tensors if other.startswith(f"{name}/")]
        loaded = {one: torch.empty(tensors[one].size, dtype=tensors[one].properties.dtype) for one in (name, *states)}
        with states_only():
            load(loaded, checkpoint_id=folder, no_dist=True)
        findings[name] = Finding(
            shape=tuple(tensors[name].size),
            squares=_squares(loaded[name]),
            states=bool(states),
            state_squares=math.fsum(_squares(loaded[state]) for state in states),
        )
    return findings


def _read_deepspeed(folder: Path, rank: int, ranks: int) -> dict[str, Finding]:
    models = sorted(folder.glob("*model_states.pt"))
    parts = sorted(folder.glob("*optim_states.pt"))
    findings = []
    for path in models[rank::ranks]:
        held = load_states(path, mmap=True)
        shapes = held.get("param_shapes")
        findings.append(_named_weights(held["module"], {} if shapes is None else _flat(shapes)))
        if held["optimizer"] is not None:
            findings.append(_numbered_states(held["optimizer"], held["module"], held.get("shared_params") or {}))
    shapes = _flat(load_states(models[0], mmap=True)["param_shapes"] or []) if parts else {}
    for path in parts[rank::ranks]:
        findings.append(_flat_states(load_states(path, mmap=True)["optimizer_state_dict"], shapes, len(parts)))
    return merge(findings)


def _flat(groups: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for group in groups for name, shape in group.items()}


def _named_weights(module: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Finding]:
    """Weights by name. At stage 3 they are empty here, and only their shapes are known."""
    return {
        name: Finding(shape=tuple(value.shape) if value.numel() else shapes.get(name), squares=_squares(value))
        for name, value in module.items()
    }


def _numbered_states(
    optimizer: Mapping[str, Any], module: Mapping[str, Tensor], shared: Mapping[str, str]
) -> dict[str, Finding]:
    """Stage 0: a whole optimizer, whose states are numbered. The groups, which hold matrices first, would say which
    parameter each number is. Here states are matched by shape only, so each shape needs as many as it has parameters.
    """
    inner = optimizer.get("optimizer_state_dict", optimizer)
    waiting: dict[tuple[int, ...], list[list[Tensor]]] = {}
    for states in inner["state"].values():
        tensors = [value for value in states.values() if torch.is_tensor(value) and value.numel() > 1]
        waiting.setdefault(tuple(tensors[0].shape), []).append(tensors)
    findings: dict[str, Finding] = {}
    pointers: set[int] = set()
    for name, value in module.items():
        if name in shared or value.untyped_storage().data_ptr() in pointers:
            continue  # a tied weight has one state, under its first name
        pointers.add(value.untyped_storage().data_ptr())
        same = waiting.get(tuple(value.shape))
        if same:
            findings[name] = Finding(states=True, state_squares=math.fsum(map(_squares, same.pop(0))))
    return findings


def _flat_states(held: Mapping[str, Any], shapes: Shapes, ranks: int) -> dict[str, Finding]:
    """One rank's flat vectors, cut into parameters."""
    masters = held.get("fp32_flat_groups")
    inner = held["base_optimizer_state"] if masters is None else held["optimizer_state_dict"]
    state = inner["state"]
    findings: dict[str, Finding] = {}
    addresses = (
        _addresses_by_group(held["param_slice_mappings"])
        if masters is None
        else _addresses_by_shape(shapes, [len(group) for group in masters], ranks)
    )
    for name, group, start, length in addresses:
        vectors = [value for value in state[group].values() if torch.is_tensor(value) and value.dim()]
        cut = [vector[start : start + length] for vector in vectors]
        weights = 0.0 if masters is None else _squares(masters[group][start : start + length])
        findings[name] = Finding(squares=weights, states=bool(cut), state_squares=math.fsum(map(_squares, cut)))
    return findings


def _addresses_by_group(mappings: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int, int, int]]:
    """Stages 1 and 2: (name, group, start, length) as DeepSpeed saved them."""
    for group, addresses in enumerate(mappings):
        for name, address in addresses.items():
            yield name, group, address.start, address.numel


def _addresses_by_shape(shapes: Shapes, lengths: Sequence[int], ranks: int) -> Iterator[tuple[str, int, int, int]]:
    """Stage 3: each parameter is cut evenly among the ranks, with its last part padded. Parameters follow in order."""
    group = start = 0
    for name, shape in shapes.items():
        length = -(-math.prod(shape) // ranks)
        while start >= lengths[group]:
            group, start = group + 1, 0
        yield name, group, start, length
        start += length
