"""Statistics of each layer in one optimizer step: activations, gradients, weights and updates.

Hooks are registered for that step only, so that other steps cost nothing. They only read. Gradients are read when the
optimizer starts its step: over all micro-batches and ranks, and after clipping.

Not available are gradients where the optimizer holds other tensors than the model (DeepSpeed in a lower precision or
from ZeRO 1 on), weights and updates under ZeRO 3, where no rank has them, and activations inside compiled blocks, which
hooks don't reach (those of whole blocks are available). Under tensor parallelism norms are those of a rank's shard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from models.kernels.experts import Router

OUTLIER = 6.0  # an outlier exceeds its layer's RMS by this factor (outlier features, Dettmers et al. 2022)

Stats = dict[str, float]


class LayerStats:
    """Statistics of the layers of a model over one step, between `start` and `stop`."""

    def __init__(self, model: nn.Module, rename: Callable[[str], str] = str) -> None:
        """`rename` gives a module's name in the whole model, if `model` is a part of it."""
        self.model = model
        self.layers = {rename(name): module for name, module in _layers(model)}
        self.owners = {name: _owner(rename(name), self.layers) for name, _ in model.named_parameters()}
        self.routers = {rename(name): module for name, module in model.named_modules() if isinstance(module, Router)}
        self.handles: list[Any] = []
        self.loads: dict[str, Tensor] = {}
        self.activations: dict[str, list[Tensor]] = {}
        self.gradients: dict[int, Tensor] = {}
        self.before: dict[str, Tensor] = {}

    def start(self) -> None:
        """Register the hooks, and copy the weights for the duration of the step."""
        for name, module in self.layers.items():
            self.handles.append(module.register_forward_hook(self._activation_hook(name)))
        for name, router in self.routers.items():
            self.handles.append(router.register_forward_hook(self._load_hook(name)))
        self.handles.append(register_optimizer_step_pre_hook(self._read_gradients))
        self.before = {name: p.detach().clone() for name, p in self.model.named_parameters() if p.numel()}

    def stop(self) -> dict[str, Stats]:
        """Remove the hooks. Returns the statistics by layer. If weights are sharded, every rank must call it."""
        for handle in self.handles:
            handle.remove()
        by_layer = {name: _of_activations(seen) for name, seen in self.activations.items()}
        for name, stats in self._of_parameters().items():
            by_layer.setdefault(name, {}).update(stats)
        self.handles, self.activations, self.gradients, self.before = [], {}, {}, {}
        return {name: by_layer[name] for name in self.layers if name in by_layer}

    def load(self) -> dict[str, list[float]]:
        """The share of assignments that each expert got in the step, by router. Call it once after `stop`."""
        loads, self.loads = self.loads, {}
        return {name: (counts / counts.sum()).tolist() for name, counts in loads.items()}

    def _load_hook(self, name: str) -> Callable[[Router, Any, Any], None]:
        def read(router: Router, inputs: Any, output: Any) -> None:
            counts = torch.bincount(output[1].flatten(), minlength=router.experts)
            self.loads[name] = counts + self.loads[name] if name in self.loads else counts

        return read

    def _activation_hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def read(module: nn.Module, inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, Tensor) and first.dim() > 1:  # the output layer may return the loss itself
                self.activations.setdefault(name, []).append(activation_stats(first))

        return read

    @torch.no_grad()
    def _read_gradients(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.gradients[id(parameter)] = _norm(parameter.grad)

    @torch.no_grad()
    def _of_parameters(self) -> dict[str, Stats]:
        norms: dict[str, dict[str, list[Tensor]]] = {}
        incomplete: set[str] = set()
        for name, parameter in self.model.named_parameters():
            layer = norms.setdefault(self.owners[name], {"gradient_norm": [], "weight_norm": [], "update": []})
            if id(parameter) in self.gradients:
                layer["gradient_norm"].append(self.gradients[id(parameter)])
            if name in self.before and parameter.shape == self.before[name].shape:
                layer["weight_norm"].append(_norm(self.before[name]))
                layer["update"].append(_norm(parameter.detach() - self.before[name]))
            else:
                incomplete.add(self.owners[name])
        for name in incomplete:  # ZeRO 3 shards only large parameters: half a layer is meaningless
            norms[name] |= {"weight_norm": [], "update": []}
        return {name: _of_norms(layer) for name, layer in norms.items()}


@torch.no_grad()
def activation_stats(x: Tensor) -> Tensor:
    """(4,) of any tensor: mean square, largest magnitude, share of exact zeros, share above `OUTLIER` × RMS."""
    magnitudes = x.detach().float().abs()
    mean_square = magnitudes.square().mean()
    zeros = (magnitudes == 0).float().mean()
    outliers = (magnitudes > OUTLIER * mean_square.sqrt()).float().mean()
    return torch.stack((mean_square, magnitudes.max(), zeros, outliers))


def merge(parts: Iterable[Mapping[str, Stats]]) -> dict[str, Stats]:
    """The statistics of all ranks combined: the maximum of maxima, the RMS of RMS, else the mean."""
    values: dict[str, dict[str, list[float]]] = {}
    for part in parts:
        for layer, stats in part.items():
            for name, value in stats.items():
                values.setdefault(layer, {}).setdefault(name, []).append(value)
    return {layer: {n: _combined(n, v) for n, v in stats.items()} for layer, stats in values.items()}


def _combined(name: str, values: list[float]) -> float:
    if name == "max":
        return max(values)
    if name == "rms":
        return math.sqrt(sum(value * value for value in values) / len(values))
    return sum(values) / len(values)


def load_stats(loads: Iterable[Mapping[str, list[float]]]) -> dict[str, dict[str, Any]]:
    """By router, from the shares on each rank: the shares over all ranks, the largest over the mean, their entropy as a
    share of the most that it can be, and the tokens dropped, of which there are none as experts have no capacity."""
    of_ranks = list(loads)
    found = {}
    for name in of_ranks[0]:
        shares = [sum(of_expert) / len(of_ranks) for of_expert in zip(*(rank[name] for rank in of_ranks), strict=True)]
        entropy = -sum(share * math.log(share) for share in shares if share > 0) / math.log(len(shares))
        found[name] = {"load": shares, "largest": max(shares) * len(shares), "entropy": entropy, "dropped": 0}
    return found


def _of_activations(seen: list[Tensor]) -> Stats:
    table = torch.stack(seen)
    mean_square, _, zeros, outliers = table.mean(0).tolist()
    return {"rms": math.sqrt(mean_square), "max": float(table[:, 1].max()), "zeros": zeros, "outliers": outliers}


def _of_norms(layer: Mapping[str, list[Tensor]]) -> Stats:
    norms_of_layer = {
        name: math.sqrt(sum(float(norm) ** 2 for norm in norms)) if norms else None for name, norms in layer.items()
    }
    weight, update = norms_of_layer["weight_norm"], norms_of_layer.pop("update")
    if weight and update is not None:
        norms_of_layer["update_ratio"] = update / weight
    return {name: value for name, value in norms_of_layer.items() if value is not None}


def _norm(tensor: Tensor) -> Tensor:
    """The Euclidean norm in float32. For a DTensor it is the global norm, which every rank must compute."""
    norm = torch.linalg.vector_norm(tensor.detach(), dtype=torch.float32)
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def _layers(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """The layers: the parts of the model, each block (its output is the residual stream), and its parts."""
    for name, module in model.named_children():
        if not isinstance(module, nn.ModuleList):
            # transformers has its blocks deeper
            deeper = [*_layers(module)] if any(isinstance(part, nn.ModuleList) for part in module.modules()) else []
            yield from ((f"{name}.{part}", child) for part, child in deeper) if deeper else [(name, module)]
            continue
        for number, block in enumerate(module):
            yield from ((f"{name}.{number}.{part}", child) for part, child in block.named_children())
            yield f"{name}.{number}", block


def _owner(parameter: str, layers: Iterable[str]) -> str:
    """The innermost layer that a parameter belongs to."""
    return max((name for name in layers if parameter.startswith(f"{name}.")), key=len, default=parameter)
