"""Attention: what each token may see, and which kernel computes it.

Causal attention over whole rows is torch's own kernel. Isolated documents and sliding windows would be dense masks,
which flash kernels don't take. On a GPU in 16 bits they are attention in blocks instead (blocks.py), or if that can't
be compiled, attention of variable length (Dao 2023, FlashAttention-2, in torch). Both skip what is hidden, without a
mask in memory.

Shapes: B batch, T tokens, H heads, K heads of queries and keys together, D head size, N batch × tokens flattened,
S documents.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from models.kernels import blocks
from models.kernels.autocast import multiplied_in
from models.kernels.blocks import Blocks
from models.kernels.rope_scaling import RopeScaling
from models.presets import fits_flash

FLASH_CAPABILITY = (8, 0)  # Ampere
HOPPER = (9, 0)
# From 2.12 on torch needs an argument if query heads share keys. Before, the kernel saw it
_SHARED_KEYS: dict[str, Any] = {"enable_gqa": True} if torch.__version__ >= "2.12" else {}


class Packed(NamedTuple):
    """Where documents begin in the flattened tokens of a batch, and how far back a token sees in its own."""

    starts_S: Tensor  # int32, in order, then N at least once
    longest: int  # most tokens of a document
    window: int | None


Mask = Tensor | Blocks | Packed | None  # additive scores (T, T) or (B, 1, T, T), documents, or None for causal rows


def rotary(
    tokens: int, head_dim: int, theta: float, like: Tensor, scaling: RopeScaling | None = None
) -> tuple[Tensor, Tensor]:
    """Cosine and sine (T, 1, D/2) of rotary embeddings (Su et al. 2021), scaled for a longer context, in the dtype of
    `like`."""
    exponents = torch.arange(0, head_dim, 2, device=like.device, dtype=torch.float32) / head_dim
    positions = torch.arange(tokens, device=like.device, dtype=torch.float32)
    frequencies = theta**-exponents
    if scaling is not None:
        frequencies = frequencies / torch.tensor(scaling.divisors(theta, head_dim), device=like.device)
    angles = torch.outer(positions, frequencies)[:, None, :]
    cos, sin = angles.cos(), angles.sin()
    if scaling is not None and scaling.attention != 1:
        cos, sin = cos * scaling.attention, sin * scaling.attention
    return cos.to(like.dtype), sin.to(like.dtype)


def rotate(x_BTKD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embeddings to the two halves of each head, the layout of transformers."""
    left, right = x_BTKD.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def mask_of(
    x_BTC: Tensor, positions_BT: Tensor | None, window: int | None, head_dim: int, batch: int, tokens: int
) -> Mask:
    """The mask for documents, which each start at position 0, and for the sliding window. Only the device and the
    precision of `x_BTC` matter: it may have a part of the tokens."""
    window = None if window is None or window >= tokens else window
    if positions_BT is None and window is None:
        return None
    if takes_documents(x_BTC, head_dim):
        if blocks.works(x_BTC.device, multiplied_in(x_BTC), head_dim):
            return blocks.blocks_of(blocks.earliest(positions_BT, window, batch, tokens, x_BTC.device))
        return pack(positions_BT, window, batch, tokens, x_BTC.device)
    if positions_BT is None:
        return additive(window_mask(tokens, window or tokens, x_BTC.device), x_BTC)
    return additive(document_mask(positions_BT, window), x_BTC)


def takes_documents(x: Tensor, head_dim: int) -> bool:
    """Whether attention for `x` can do without masks. Validation always uses masks, so that insight can read them."""
    if not (x.is_cuda and fits_flash(head_dim) and torch.is_grad_enabled()) or torch.version.hip is not None:
        return False
    half = multiplied_in(x) in (torch.bfloat16, torch.float16)
    return half and torch.cuda.get_device_capability(x.device) >= FLASH_CAPABILITY


def pack(positions_BT: Tensor | None, window: int | None, batch: int, tokens: int, device: torch.device) -> Packed:
    """The documents of a batch. Without positions, each row is one.

    Their number differs from batch to batch, and each number would be compiled and recorded again, so empty documents
    fill it up to a power of two.
    """
    if positions_BT is None:
        rows = torch.arange(batch + 1, device=device, dtype=torch.int32) * tokens
        return Packed(rows, tokens, window)
    begins_BT = positions_BT == 0
    begins_BT[:, 0] = True  # a row may begin within a document
    starts = begins_BT.flatten().nonzero().squeeze(1).int()
    room = 1 << len(starts).bit_length()
    return Packed(F.pad(starts, (0, room - len(starts)), value=batch * tokens), tokens, window)


def window_mask(tokens: int, window: int, device: torch.device) -> Tensor:
    """(T, T), True where query i sees key j: i - window < j <= i (Mistral 7B, section 2)."""
    positions = torch.arange(tokens, device=device)
    distance = positions[:, None] - positions[None, :]
    return (distance >= 0) & (distance < window)


def document_mask(positions_BT: Tensor, window: int | None) -> Tensor:
    """(B, 1, T, T), True where query i may see key j: not later, in the same document (each starts at position 0), and
    within the sliding window, if any."""
    document_BT = (positions_BT == 0).cumsum(1)
    tokens = positions_BT.shape[1]
    near_TT = window_mask(tokens, window or tokens, positions_BT.device)
    return (near_TT & (document_BT[:, :, None] == document_BT[:, None, :]))[:, None]


def additive(mask: Tensor, like: Tensor) -> Tensor:
    """A boolean mask as additive scores, in the precision of attention.

    Attention would convert it itself, but in each block, and save each copy for the backward pass.
    """
    return torch.zeros_like(mask, dtype=multiplied_in(like)).masked_fill_(~mask, -math.inf)


def must_repeat_keys(x: Tensor, mask: Tensor | None) -> bool:
    """Whether keys and values must be repeated for each query head. On a GPU torch's flash and cuDNN kernels support
    shared ones, but not in float32, and flash doesn't take masks. The fallback for these would materialise all scores.
    """
    return x.is_cuda and (mask is not None or multiplied_in(x) == torch.float32)


def for_one_shape(device: torch.device) -> AbstractContextManager[object]:
    """The kernel order for training. On Hopper cuDNN comes before flash, as it takes four fifths of the time, forward
    and backward (benchmarks/RESULTS.md). Newer versions of torch prefer it there anyway."""
    if device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(device) != HOPPER:
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    return sdpa_kernel([getattr(SDPBackend, kernel) for kernel in kernels], set_priority=True)


@contextlib.contextmanager
def for_any_shape() -> Iterator[None]:
    """Leave out cuDNN's attention for batches of many shapes: on Hopper torch prefers it, and it takes about half a
    second to plan each new shape (measured for torch 2.11 on a B200: FunASR, issue 3704). With masks it may also give
    NaN there (pytorch, issue 196678)."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def attend(q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, mask: Mask) -> Tensor:
    """Attention (B, T, H, D). Keys and values may have fewer heads, which queries then share."""
    if isinstance(mask, Blocks | Packed):
        # Autocast does not cast for either operator
        q_BTHD, k_BTHD, v_BTHD = (part.to(multiplied_in(part)) for part in (q_BTHD, k_BTHD, v_BTHD))
        if isinstance(mask, Blocks):
            return blocks.attend(q_BTHD, k_BTHD, v_BTHD, mask)
        return _attend_documents(q_BTHD, k_BTHD, v_BTHD, mask)
    k_BHTD, v_BHTD = k_BTHD.transpose(1, 2), v_BTHD.transpose(1, 2)
    times = q_BTHD.shape[2] // k_BTHD.shape[2]
    if times > 1 and must_repeat_keys(q_BTHD, mask):
        k_BHTD, v_BHTD = k_BHTD.repeat_interleave(times, 1), v_BHTD.repeat_interleave(times, 1)
        times = 1
    y_BHTD = F.scaled_dot_product_attention(
        q_BTHD.transpose(1, 2), k_BHTD, v_BHTD, attn_mask=mask, is_causal=mask is None, enable_gqa=times > 1
    )
    return y_BHTD.transpose(1, 2)


def _attend_documents(q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, packed: Packed) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # imports the compiler

    starts_S, longest, window = packed
    q_NHD, k_NHD, v_NHD = (part.flatten(0, 1) for part in (q_BTHD, k_BTHD, v_BTHD))
    before = -1 if window is None else window - 1  # visible tokens before a token itself, -1 for all
    y_NHD = varlen_attn(
        q_NHD, k_NHD, v_NHD, starts_S, starts_S, longest, longest, window_size=(before, 0), **_SHARED_KEYS
    )
    return cast(Tensor, y_NHD).view(q_BTHD.shape)


def attention_of_documents() -> list[Any]:
    """The operators of attention within documents, which selective recomputation saves."""
    from torch.nn.attention import varlen  # noqa: F401  # registers it

    return [torch.ops.torch_attn._varlen_attn.default, torch.ops.higher_order.flex_attention]
