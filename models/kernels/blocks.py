"""Attention within documents by FlexAttention (Dong et al. 2024, in torch): it skips blocks of scores that a mask
hides, and masks only those that it cuts through.

Measured on an H200, forward and backward, with eight documents a row of 1,024: 0.53 ms, where attention of variable
length took 0.86 ms (benchmarks/RESULTS.md). It is compiled for each GPU and head size, so it is tried before use.

Shapes: B batch, T tokens, H heads, K heads of keys, D head size, I blocks of queries, J blocks of keys.
"""

from __future__ import annotations

import functools
import logging
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

BLOCK = 128  # tokens, of queries and of keys
TRIED = 2 * BLOCK + 32  # tokens of a trial: whole blocks, and a part of one
CLOSE = 2e-2  # relative error in norm that 16 bits may have


class Blocks(NamedTuple):
    """The earliest token that each token sees (B, T), and torch's BlockMask of it."""

    earliest_BT: Tensor
    mask: Any


def earliest(positions_BT: Tensor | None, window: int | None, batch: int, tokens: int, device: torch.device) -> Tensor:
    """(B, T): for each token the first that it sees, in its document and its sliding window. Documents start at
    position 0, and rows may begin within one."""
    places_T = torch.arange(tokens, device=device)
    first_BT = torch.zeros(batch, tokens, dtype=torch.int64, device=device)
    if positions_BT is not None:
        first_BT = torch.where(positions_BT == 0, places_T, 0).cummax(1).values
    return first_BT if window is None else torch.maximum(first_BT, places_T - window + 1)


def blocks_of(earliest_BT: Tensor) -> Blocks:
    """The blocks to compute. A token sees one contiguous stretch, so its ends suffice, without a mask (T, T)."""
    from torch.nn.attention.flex_attention import BlockMask  # imports the compiler

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (k >= earliest_BT[b, q])

    tokens = earliest_BT.shape[1]
    begins_J = torch.arange(0, tokens, BLOCK, device=earliest_BT.device)
    begins_I1, ends_I = begins_J[:, None], (begins_J + BLOCK - 1).clamp(max=tokens - 1)
    some_BIJ = (begins_J <= begins_I1) & (begins_J + BLOCK > earliest_BT[:, begins_J, None])
    filled_I1 = begins_I1 + BLOCK <= tokens  # torch masks the last block if tokens don't fill it
    whole_BIJ = filled_I1 & (begins_J < begins_I1) & (begins_J >= earliest_BT[:, ends_I, None])
    cut, whole = _listed(some_BIJ & ~whole_BIJ), _listed(whole_BIJ)
    mask = BlockMask.from_kv_blocks(*cut, *whole, BLOCK_SIZE=BLOCK, mask_mod=seen, seq_lengths=(tokens, tokens))
    return Blocks(earliest_BT, mask)


def _listed(chosen_BIJ: Tensor) -> tuple[Tensor, Tensor]:
    """For each block of queries, shared by all heads: the number of its blocks of keys, and all key blocks with those
    first."""
    chosen_B1IJ = chosen_BIJ[:, None].int()
    order = chosen_B1IJ.argsort(dim=-1, descending=True, stable=True)
    return chosen_B1IJ.sum(-1, dtype=torch.int32), order.int()


def attend(q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, blocks: Blocks) -> Tensor:
    """Attention (B, T, H, D) of queries, keys and values of one precision."""
    parts = (part.transpose(1, 2) for part in (q_BTHD, k_BTHD, v_BTHD))
    shared = q_BTHD.shape[2] != k_BTHD.shape[2]
    return cast(Tensor, _flex()(*parts, block_mask=blocks.mask, enable_gqa=shared)).transpose(1, 2)


def _flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention if torch.compiler.is_compiling() else _compiled()


@functools.cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


@functools.cache
def works(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether FlexAttention compiles here and agrees with plain attention. Logs a warning if not. Takes seconds, once a
    process."""
    try:
        with torch.autocast(device.type, enabled=False):
            apart = _apart(device, dtype, head_dim)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ImportError, OSError, subprocess.SubprocessError) as error:
        return _refused((str(error) or type(error).__name__).strip().splitlines()[0])
    return apart < CLOSE or _refused(f"its result differs by {apart:.0%} from that of plain attention")


def _refused(why: str) -> bool:
    logging.getLogger(__name__).warning(
        "FlexAttention can't be used on this machine: attention within documents takes about 1.5 times as long. (%s)",
        why,
    )
    return False


@torch.enable_grad()
def _apart(device: torch.device, dtype: torch.dtype, head_dim: int) -> float:
    """The largest relative error of outputs and gradients, against plain attention in float32, over two rows of
    documents."""
    generator = torch.Generator(device).manual_seed(0)
    shapes = [(2, TRIED, heads, head_dim) for heads in (4, 2, 2, 4)]
    drawn = [torch.randn(shape, device=device, generator=generator).to(dtype) for shape in shapes]
    inputs, gradient = [part.requires_grad_() for part in drawn[:3]], drawn[3]
    exact = [part.detach().float().requires_grad_() for part in inputs]
    places_T = torch.arange(TRIED, device=device)
    earliest_BT = earliest(torch.stack((places_T % 100, places_T)), 200, 2, TRIED, device)
    flex = attend(inputs[0], inputs[1], inputs[2], blocks_of(earliest_BT))
    seen_BTT = (places_T <= places_T[:, None]) & (places_T >= earliest_BT[:, :, None])
    q_BHTD, *keys_and_values = (part.transpose(1, 2) for part in exact)
    k_BHTD, v_BHTD = (part.repeat_interleave(2, 1) for part in keys_and_values)
    scores = q_BHTD @ k_BHTD.mT / head_dim**0.5
    plain = scores.masked_fill(~seen_BTT[:, None], -torch.inf).softmax(-1) @ v_BHTD
    pairs = zip(
        (flex, *torch.autograd.grad(flex, inputs, gradient)),
        (plain.transpose(1, 2), *torch.autograd.grad(plain.transpose(1, 2), exact, gradient.float())),
        strict=True,
    )
    return max(float((one.float() - other).norm() / other.norm()) for one, other in pairs)
