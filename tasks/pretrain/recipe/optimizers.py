"""The optimizer of a profile, for whatever parameters an engine holds.

AdamW (Loshchilov & Hutter 2019) by default. Muon (Jordan et al. 2024) takes the matrices of the blocks where a profile
asks for it, and AdamW keeps the rest: embeddings, head, norms and biases. Its update is scaled to the RMS of Adam's
(Liu et al. 2025, "Muon is scalable for LLM training", section 2.2), so that one learning rate serves both. A matrix is
orthogonalised as it is kept: q, k and v together, gate and up together.

Under muP (Yang et al. 2022, "Tensor Programs V", table 8, Adam's column) the rates of the blocks' matrices shrink with
the width; the multiplier of the output stands in the last norm, with its rate (see `Transformer.initialise`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from models.presets import derive
from tasks.pretrain.config import PretrainConfig

Group = dict[str, Any]


def new_optimizer(config: PretrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer over the model's parameters; `set_learning_rate` sets its rate at each step."""
    groups = parameter_groups(config, model)
    adam: dict[str, Any] = {"lr": 0.0, "betas": (config.beta1, config.beta2), "eps": config.epsilon, "fused": True}
    if config.optimizer == "adamw":
        return torch.optim.AdamW([group for _, group in groups], **adam)
    by_adam, by_muon = ([group for name, group in groups if (name == "muon") == muon] for muon in (False, True))
    return AdamWWithMuon(
        torch.optim.AdamW(by_adam, **adam),
        torch.optim.Muon(by_muon, lr=0.0, momentum=config.muon_momentum, adjust_lr_fn="match_rms_adamw"),
    )


def set_learning_rate(groups: Iterable[Group], rate: float) -> None:
    """The rate of each group for the next step: its share of the run's."""
    for group in groups:
        group["lr"] = rate * group["rate_scale"]


def parameter_groups(config: PretrainConfig, model: nn.Module) -> list[tuple[str, Group]]:
    """(optimizer, group): matrices decay, biases and norm scales don't; each group has its share of the learning rate.

    Each parameter stands in exactly one. Groups and their order follow from the config alone, whatever part of the
    model this is: states are saved by their numbers.
    """
    groups: dict[tuple[str, float, float], list[nn.Parameter]] = {}
    for kind in ("matrix", "vector", "matrix of a block", "last norm"):
        groups.setdefault(_treatment(config, kind), [])
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            kind = "matrix of a block" if name.startswith("blocks.") else "matrix"
        else:
            kind = "last norm" if name.startswith("norm.") else "vector"
        groups[_treatment(config, kind)].append(parameter)
    return [
        (optimizer, {"params": parameters, "weight_decay": decay, "rate_scale": scale})
        for (optimizer, decay, scale), parameters in groups.items()
    ]


def _treatment(config: PretrainConfig, kind: str) -> tuple[str, float, float]:
    """(optimizer, weight decay, share of the learning rate) of a kind of parameter."""
    wider = derive(config.model, vocab_size=1).width / config.mup_base_width if config.mup_base_width else 1.0
    if kind == "vector":
        return "adamw", 0.0, 1.0
    if kind == "last norm":
        return "adamw", 0.0, 1 / wider
    if kind == "matrix":
        return "adamw", config.weight_decay, 1.0
    # Decoupled decay is rate × decay: what the width takes from the one it gives to the other
    if config.optimizer == "adamw":
        return "adamw", config.weight_decay * wider, 1 / wider
    # An update of a given size moves outputs in proportion to the width, an orthogonal one to its root
    shrink = wider**0.5
    share = (config.muon_learning_rate or config.learning_rate) / config.learning_rate
    return "muon", config.weight_decay * shrink, share / shrink


class AdamWWithMuon(torch.optim.Optimizer):
    """Two optimizers as one, which an engine steps, saves and loads as any other."""

    def __init__(self, adamw: torch.optim.AdamW, muon: torch.optim.Muon) -> None:
        self.parts = (adamw, muon)
        super().__init__([*adamw.param_groups, *muon.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float | Tensor] | None = None) -> None:  # type: ignore[override]
        """One step of each. Groups and states are this object's own: loading replaces them."""
        if closure is not None:
            raise TypeError("there is nothing to evaluate again: no closure is taken")
        first = len(self.parts[0].param_groups)
        for part, groups in zip(self.parts, (self.param_groups[:first], self.param_groups[first:]), strict=True):
            part.param_groups, part.state = groups, self.state
            part.step()
