"""torch's attention of variable length on a CPU, where it lacks a kernel: plainly, by a mask over all tokens.

Everything around the kernel is torch's own: the public function, its gradient, what it saves, what compilers see.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


@functools.cache
def register() -> None:
    """Let torch's operators take this kernel on a CPU."""
    from torch.nn.attention import varlen

    forward: Any = varlen._varlen_attn
    backward: Any = varlen._varlen_attn_backward
    forward.register_kernel("cpu")(_forward)
    backward.register_kernel("cpu")(_backward)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    _: Tensor,
    longest: int,
    __: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: list[int] | None = None,
    *rest: object,
) -> tuple[Tensor, Tensor, Tensor]:
    assert is_causal == (window_size == [-1, 0])
    scores = _scores(query, key, starts, longest, window_size or [-1, -1])
    output = torch.einsum("hnm,mhd->nhd", scores.softmax(-1), _repeated(value, query))
    return output.to(query.dtype).contiguous(), scores.logsumexp(-1), torch.zeros(2, dtype=torch.uint64)


def _backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    log_z: Tensor,
    starts: Tensor,
    _: Tensor,
    longest: int,
    __: int,
    is_causal: bool,
    state: Tensor,
    scale: float | None = None,
    window_size: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    chosen = _scores(query, key, starts, longest, window_size or [-1, -1]).softmax(-1)
    dvalue = torch.einsum("hnm,nhd->mhd", chosen, gradient.float())
    dchosen = torch.einsum("nhd,mhd->hnm", gradient.float(), _repeated(value, query))
    dscores = chosen * (dchosen - (dchosen * chosen).sum(-1, keepdim=True)) / query.shape[2] ** 0.5
    dquery = torch.einsum("hnm,mhd->nhd", dscores, _repeated(key, query))
    dkey = torch.einsum("hnm,nhd->mhd", dscores, query.float())
    shared = (len(key), key.shape[1], -1, key.shape[2])  # heads that share a key give it the sum of their gradients
    dkey, dvalue = (part.reshape(shared).sum(2).to(key.dtype).contiguous() for part in (dkey, dvalue))
    return dquery.to(query.dtype).contiguous(), dkey, dvalue


def _scores(query: Tensor, key: Tensor, starts: Tensor, longest: int, window: list[int]) -> Tensor:
    """(H, N, N) in float32, -inf for what is hidden."""
    tokens = len(query)
    assert starts.dtype == torch.int32
    assert starts[0] == 0
    assert starts[-1] == tokens
    assert 0 <= int(starts.diff().min()) <= int(starts.diff().max()) <= longest
    places = torch.arange(tokens)
    document = torch.searchsorted(starts, places, right=True)
    distance = places[:, None] - places[None, :]
    seen = (document[:, None] == document[None, :]) & (distance >= -window[1])
    if window[0] >= 0:
        seen &= distance <= window[0]
    scores: Tensor = torch.einsum("nhd,mhd->hnm", query.float(), _repeated(key, query))
    scores /= query.shape[2] ** 0.5
    return scores.masked_fill(~seen, -torch.inf)


def _repeated(shared: Tensor, query: Tensor) -> Tensor:
    return shared.float().repeat_interleave(query.shape[1] // shared.shape[1], 1)
