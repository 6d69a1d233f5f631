"""Section: attention kernels, forward and backward: which of torch's is fastest, and what masks of documents cost.

FLOPs are those of causal attention, whatever a kernel computes: 3.5 × the two forward products of half the square
(Dao 2023, FlashAttention-2, section 4.1), so that skipping what a mask hides counts as speed.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.bench import Bench

NAME = "attention"
SHAPES = ((16, 12, 1024, 64), (4, 12, 4096, 64), (16, 16, 1024, 128), (4, 16, 4096, 128))  # batch, heads, tokens, size
TINY_SHAPES = ((2, 2, 128, 32),)
DOCUMENTS = 8  # in a row
TIMES, WARM = 20, 3


def run(bench: Bench) -> None:
    """A row for each shape and kernel; those that this device lacks are noted."""
    for shape in TINY_SHAPES if bench.tiny else SHAPES:
        what = " × ".join(str(number) for number in shape)
        found = bench.measured(NAME, what, {"device": bench.device, "shape": shape})
        for kernel, measured in (found or {}).items():
            if "lacking" in measured:
                bench.results.note(NAME, f"{what}: {kernel} is not to be had: {measured['lacking']}")
            else:
                bench.results.row(NAME, shape=what, kernel=kernel, **measured)


def measure(device: str, shape: list[int]) -> dict[str, dict[str, Any]]:
    """In the shared process: times of each kernel, or why it is lacking."""
    import torch

    batch, heads, tokens, size = shape
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    given = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
    flops = 3.5 * 2 * 2 * batch * heads * tokens * tokens * size / 2
    found: dict[str, dict[str, Any]] = {}
    for name, kernel in _kernels(device, batch, tokens, dtype).items():
        try:
            forward, backward = _seconds(lambda kernel=kernel: kernel(*given), given)  # type: ignore[misc]
        except (RuntimeError, NotImplementedError) as error:  # torch has no type of its own for a kernel that's lacking
            found[name] = {"lacking": textwrap.shorten(str(error).strip().splitlines()[0], 150)}
            continue
        found[name] = {
            "forward_ms": 1000 * forward,
            "backward_ms": 1000 * backward,
            "teraflops": flops / (forward + backward) / 1e12,
        }
    return found


def _kernels(device: str, batch: int, tokens: int, dtype: Any) -> dict[str, Callable[..., Any]]:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from models.kernels.attention import attend, pack

    document = torch.arange(tokens, device=device) * DOCUMENTS // tokens

    def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    def apart(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (document[q] == document[k])

    def by(backend: SDPBackend, mask: Any = None) -> Callable[..., Any]:
        def call(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)

        return call

    def flex(seen: Callable[..., Any]) -> Callable[..., Any]:
        mask = create_block_mask(seen, None, None, tokens, tokens, device=device)
        compiled = torch.compile(flex_attention)
        return lambda q, k, v: compiled(q, k, v, block_mask=mask)

    places = torch.arange(tokens, device=device)
    positions = (places - document * tokens // DOCUMENTS).expand(batch, -1)
    packed = pack(positions, None, batch, tokens, torch.device(device))

    def variable(q: Any, k: Any, v: Any) -> Any:
        return attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), packed)

    dense = apart(0, 0, places[:, None], places[None, :])
    scores = torch.zeros(tokens, tokens, device=device, dtype=dtype).masked_fill_(~dense, float("-inf"))
    return {
        "flash": by(SDPBackend.FLASH_ATTENTION),
        "cuDNN": by(SDPBackend.CUDNN_ATTENTION),
        "memory-efficient": by(SDPBackend.EFFICIENT_ATTENTION),
        "documents apart, memory-efficient": by(SDPBackend.EFFICIENT_ATTENTION, scores),
        "documents apart, math": by(SDPBackend.MATH, scores),
        "documents apart, variable length (ours)": variable,
        "flex": flex(causal),
        "documents apart, flex": flex(apart),
    }


def _seconds(call: Callable[[], Any], given: list[Any]) -> tuple[float, float]:
    """Of the forward and the backward pass, the mean of several, one after the other: the device waits for nothing."""
    import torch

    out = call()
    gradient = torch.randn_like(out)

    def backward() -> None:
        torch.autograd.grad(out, given, gradient, retain_graph=True)

    return _mean(call, given[0].device.type), _mean(backward, given[0].device.type)


def _mean(work: Callable[[], Any], device: str) -> float:
    import torch

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(WARM):
        work()
    wait()
    began = time.perf_counter()
    for _ in range(TIMES):
        work()
    wait()
    return (time.perf_counter() - began) / TIMES
