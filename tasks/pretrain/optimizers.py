"""The optimizer of a profile, for whatever parameters an engine holds."""

from __future__ import annotations

import torch
from torch import nn

from models.transformer import decay_groups
from tasks.pretrain.config import PretrainConfig


def new_optimizer(config: PretrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019) over the model's parameters; its rate is set anew at each step."""
    return torch.optim.AdamW(
        decay_groups(model, config.weight_decay), lr=0.0, betas=(config.beta1, config.beta2), fused=True
    )
