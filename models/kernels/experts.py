"""A mixture of experts in place of a feed-forward layer: of many small SwiGLU layers each token passes a few.

A router gives each token's hidden state a softmax over the experts. The token goes to the best of them, and their
outputs are weighed by those shares, divided by their sum (Qwen3-MoE). No token is dropped and none is padded: tokens
are sorted by expert, so that each expert multiplies the rows that are its own (MegaBlocks, Gale et al. 2023).

Two losses are added for the gradient, and never reported. Without the first a router soon sends all tokens to a few
experts. Both are means over each sequence, so that a batch teaches the same however it is split over processes and
micro-batches. DeepSeek-V3 (section 4.5.3) measured 0.005 nats more for that than over whole batches.

Shapes: B batch, T tokens, C width, N batch × tokens flattened, K experts of a token, M = N × K rows sorted by expert,
E experts, F feed-forward of an expert.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.kernels.autocast import multiplied_in
from models.kernels.grouped import grouped_linear
from models.presets import ModelShape


class Router(nn.Module):
    """Chooses the experts of each token. `balance` and `z_loss` are the weights of the two losses."""

    balance, z_loss = 0.0, 0.0

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        assert shape.experts is not None
        assert shape.experts_per_token is not None
        self.experts, self.of_token = shape.experts, shape.experts_per_token
        self.weight = nn.Parameter(torch.empty(shape.experts, shape.width))

    def forward(self, x_BTC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The weights (B, T, K) and the numbers (B, T, K) of each token's experts, and the losses (B,) by sequence.

        Computed in float32 at least: rounded logits choose other experts (Switch Transformer, section 2.4).
        """
        precise = torch.promote_types(x_BTC.dtype, torch.float32)
        with torch.autocast(x_BTC.device.type, enabled=False):
            logits_BTE = F.linear(x_BTC.to(precise), self.weight.to(precise))
        shares_BTE = logits_BTE.softmax(-1)
        weights_BTK, experts_BTK = shares_BTE.topk(self.of_token)
        weights_BTK = weights_BTK / weights_BTK.sum(-1, keepdim=True)
        return weights_BTK, experts_BTK, self._losses(logits_BTE, shares_BTE, experts_BTK)

    def _losses(self, logits_BTE: Tensor, shares_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        """E × Σ f P, where f is the share of a sequence's assignments that an expert gets, and P its mean softmax
        (Switch Transformer, equations 4 to 6, with f divided by K): 1 if balanced. And the mean of log² Σ exp of the
        logits (ST-MoE, equation 5)."""
        assigned_BM = experts_BTK.flatten(1)
        counts_BE = torch.zeros_like(logits_BTE[:, 0]).scatter_add(
            1, assigned_BM, torch.ones_like(assigned_BM, dtype=logits_BTE.dtype)
        )
        balance_B = self.experts / assigned_BM.shape[1] * (counts_BE * shares_BTE.mean(1)).sum(-1)
        return self.balance * balance_B + self.z_loss * logits_BTE.logsumexp(-1).square().mean(1)


def set_losses(model: nn.Module, *, balance: float, z_loss: float) -> None:
    """Set the weights of all routers' losses."""
    for module in model.modules():
        if isinstance(module, Router):
            module.balance, module.z_loss = balance, z_loss


class ExpertLinear(nn.Module):
    """A linear layer of each expert, with the weights one below the other."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.experts = experts
        self.weight = nn.Parameter(torch.empty(experts * outputs, inputs))

    def forward(self, x_MC: Tensor, ends_E: Tensor) -> Tensor:
        """Rows sorted by expert, those of each up to its place in `ends_E`."""
        weight = self.weight.to(x_MC.dtype).view(self.experts, -1, self.weight.shape[1])
        return grouped_linear(x_MC, weight, ends_E)


class Experts(nn.Module):
    """The router and its experts."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        assert shape.experts is not None
        assert shape.expert_feed_forward is not None
        self.router = Router(shape)
        self.up = ExpertLinear(shape.experts, shape.width, 2 * shape.expert_feed_forward)
        self.down = ExpertLinear(shape.experts, shape.expert_feed_forward, shape.width)

    def forward(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, C) to (B, T, C), and the router's losses (B,)."""
        weights_BTK, experts_BTK, losses_B = self.router(x_BTC)
        chosen_M = experts_BTK.flatten()
        sorted_M, order_M = chosen_M.sort(stable=True)
        ends_E = torch.searchsorted(
            sorted_M, torch.arange(self.router.experts, device=sorted_M.device), right=True, out_int32=True
        )
        places_M = torch.empty_like(order_M).scatter(0, order_M, torch.arange(len(order_M), device=order_M.device))
        x_NC = x_BTC.flatten(0, 1).to(multiplied_in(x_BTC))
        x_MC: Tensor = _ToExperts.apply(x_NC, order_M, places_M)  # type: ignore[no-untyped-call]
        gate_MF, up_MF = self.up(x_MC, ends_E).chunk(2, dim=-1)
        y_MC: Tensor = self.down(F.silu(gate_MF) * up_MF, ends_E)
        y_MC = _ToTokens.apply(y_MC, order_M, places_M)  # type: ignore[no-untyped-call]
        y_BTKC = y_MC.view(*experts_BTK.shape, -1)
        return (y_BTKC * weights_BTK[..., None].to(y_BTKC.dtype)).sum(2), losses_B


class _ToExperts(torch.autograd.Function):
    """Each token's row, once for each of its experts, sorted by expert. The gradient is summed in order of the token's
    experts, without the random order of atomic additions."""

    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, order_M: Tensor, places_M: Tensor) -> Tensor:
        ctx.save_for_backward(places_M)
        ctx.tokens = len(x_NC)
        return x_NC[order_M // (len(order_M) // len(x_NC))]

    @staticmethod
    def backward(ctx: Any, grad_MC: Tensor) -> tuple[Tensor, None, None]:
        (places_M,) = ctx.saved_tensors
        return grad_MC[places_M].view(ctx.tokens, -1, grad_MC.shape[1]).sum(1), None, None


class _ToTokens(torch.autograd.Function):
    """Rows sorted by expert, back in the order of tokens."""

    @staticmethod
    def forward(ctx: Any, y_MC: Tensor, order_M: Tensor, places_M: Tensor) -> Tensor:
        ctx.save_for_backward(order_M)
        return y_MC[places_M]

    @staticmethod
    def backward(ctx: Any, grad_MC: Tensor) -> tuple[Tensor, None, None]:
        (order_M,) = ctx.saved_tensors
        return grad_MC[order_M], None, None
