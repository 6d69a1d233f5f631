"""The optimizer of a profile, over the parameters that an engine holds.

AdamW (Loshchilov & Hutter 2019) by default. Muon (Jordan et al. 2024), if chosen, updates the matrices of the blocks,
and AdamW the rest: embeddings, head, norms, biases, routers and convolutions. Its update is scaled to the RMS of Adam's
(Liu et al. 2025, "Muon is scalable for LLM training", section 2.2), so that one learning rate serves both.

With muP (Yang et al. 2022, "Tensor Programs V", table 8, Adam's column) the learning rates of the blocks' matrices
shrink with the width, and of layers that write to the residual stream with the depth (Dey et al. 2025, "CompleteP",
table 1). Multipliers are in the weights (see `Transformer.initialise`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from models.kernels.experts import Experts
from models.presets import derive
from models.transformer import Attention, FeedForward, writes_to_residual
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.recipe.muon import Muon, Whole

Group = dict[str, Any]


def new_optimizer(
    config: PretrainConfig, model: nn.Module, sizes: Mapping[str, torch.Size] | None = None, layout: Whole | None = None
) -> torch.optim.Optimizer:
    """The optimizer over the model's parameters. `set_learning_rate` sets the rate of each step. `sizes` are those of
    the whole parameters, needed if their shards don't show them, and `layout` is how this process holds matrices."""
    groups = parameter_groups(config, model, sizes)
    if sizes is not None:  # DeepSpeed, which can't flatten an empty group: where only matrices are trained
        groups = [pair for pair in groups if pair[1]["params"]]
    adam: dict[str, Any] = {"lr": 0.0, "betas": (config.beta1, config.beta2), "eps": config.epsilon, "fused": True}
    if config.optimizer == "adamw":
        return torch.optim.AdamW([group for _, group in groups], **adam)
    by_adam, by_muon = ([group for name, group in groups if (name == "muon") == muon] for muon in (False, True))
    return AdamWWithMuon(
        torch.optim.AdamW(by_adam, **adam), Muon(by_muon, momentum=config.muon_momentum, layout=layout)
    )


def set_learning_rate(groups: Iterable[Group], rate: float) -> None:
    """Set each group's learning rate for the next step: the run's rate times the group's scale."""
    for group in groups:
        group["lr"] = rate * group["rate_scale"]


def parameter_groups(
    config: PretrainConfig, model: nn.Module, sizes: Mapping[str, torch.Size] | None = None
) -> list[tuple[str, Group]]:
    """(optimizer, group) pairs with weight decay, on matrices only, and learning-rate scale. For Muon also the number
    of rows of each matrix fused in a parameter.

    Each trained parameter is in exactly one. Groups and their order follow only from the config, whatever part of the
    model this is, as states are saved by group number.
    """
    groups: dict[tuple[str, float, float], list[nn.Parameter]] = {}
    mixture = config.model is not None and config.model.family == "qwen3_moe"
    kinds = ("matrix", "vector", "matrix of a block", "last norm", "residual matrix", "residual vector")
    for kind in (*kinds, *(("router",) if mixture else ())):
        groups.setdefault(_treatment(config, kind), [])
    inside = _matrices_of_blocks(model)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if len(sizes[name] if sizes else parameter.shape) >= 2:
            kind = "matrix of a block" if parameter in inside else "matrix"
            kind = "residual matrix" if writes_to_residual(name) else kind
            kind = "router" if name.endswith(".router.weight") else kind
        else:
            kind = "last norm" if name.startswith("norm.") else "vector"
            kind = "residual vector" if writes_to_residual(name) else kind
        groups[_treatment(config, kind)].append(parameter)
    fused = _fused(model) if config.optimizer == "muon" else {}
    pairs: list[tuple[str, Group]] = []
    for (optimizer, decay, scale), parameters in groups.items():
        group: Group = {"params": parameters, "weight_decay": decay, "rate_scale": scale}
        if optimizer == "muon":
            group["parts"] = [
                fused.get(parameter, (len(parameter),) if parameter.dim() == 2 else (1,) * len(parameter))
                for parameter in parameters
            ]
        pairs.append((optimizer, group))
    return pairs


def _matrices_of_blocks(model: nn.Module) -> set[nn.Parameter]:
    """The parameters of the blocks, without those of convolutions, whose slices aren't matrices."""
    modules = [module for block in getattr(model, "blocks", ()) for module in block.modules()]
    return {
        parameter
        for module in modules
        if not isinstance(module, _ConvNd)
        for parameter in module.parameters(recurse=False)
    }


def _fused(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """The number of rows of each matrix, by parameter, if it holds several."""
    rows: dict[Tensor, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, Attention):
            queries, keys = (heads * module.head_dim for heads in (module.heads, module.kv_heads))
            rows[module.qkv.weight] = queries, keys, keys
        elif isinstance(module, FeedForward) and module.gated:
            rows[module.up.weight] = (len(module.up.weight) // 2,) * 2
        elif isinstance(module, Experts):
            for layer, parts in ((module.up, 2 * module.up.experts), (module.down, module.down.experts)):
                rows[layer.weight] = (len(layer.weight) // parts,) * parts
    return rows


def _treatment(config: PretrainConfig, kind: str) -> tuple[str, float, float]:
    """(optimizer, weight decay, learning-rate scale) of a kind of parameter."""
    wider = deeper = 1.0
    if config.mup_base_width and config.model:
        wider = derive(config.new_model, vocab_size=1).width / config.mup_base_width
    if config.mup_base_depth and config.model and kind.startswith("residual"):
        deeper = config.model.depth / config.mup_base_depth
    if kind in ("vector", "residual vector"):
        return "adamw", 0.0, 1 / deeper
    if kind == "last norm":
        return "adamw", 0.0, 1 / wider
    if kind == "matrix":
        return "adamw", config.weight_decay, 1.0
    # Decoupled decay is rate × decay, so a higher decay compensates for the lower rate
    if config.optimizer == "adamw" or kind == "router":
        return "adamw", config.weight_decay * wider * deeper, 1 / (wider * deeper)
    # For an update of fixed size outputs move in proportion to the width, for an orthogonal one to its root
    shrink = wider**0.5 * deeper
    share = (config.muon_learning_rate or config.learning_rate) / config.learning_rate
    return "muon", config.weight_decay * shrink, share / shrink


class AdamWWithMuon(torch.optim.Optimizer):
    """Two optimizers behind the interface of one."""

    def __init__(self, adamw: torch.optim.AdamW, muon: Muon) -> None:
        self.parts = (adamw, muon)
        super().__init__([*adamw.param_groups, *muon.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float | Tensor] | None = None) -> None:  # type: ignore[override]
        """One step of each, with this object's groups and states: loading states replaces them."""
        if closure is not None:
            raise TypeError("closures are not supported")
        first = len(self.parts[0].param_groups)
        for part, groups in zip(self.parts, (self.param_groups[:first], self.param_groups[first:]), strict=True):
            part.param_groups, part.state = groups, self.state
            part.step()
