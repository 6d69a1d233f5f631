"""The loss's work on 16-bit logits between matrix products, row by row, compiled into kernels on a GPU.

Operator by operator, PyTorch passes about ten times over the logits in float32, some 40 bytes of memory traffic for
each logit: by calculation a quarter of a training step of 124M parameters on an H200. Fused, it reads them twice or
three times and writes them once, 6 to 8 bytes.

Shapes: N tokens of a chunk, V the vocabulary, or this rank's shard of it.
"""

from __future__ import annotations

import functools
import logging
import subprocess
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def statistics(logits_NV: Tensor, word_N1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each row, in float32: the highest logit, the sum of exp(logit - highest), and the logit of `word_N1`."""
    logits_NV = logits_NV.float()
    highest_N1 = logits_NV.amax(dim=-1, keepdim=True)
    logit_N1 = logits_NV.gather(1, word_N1)
    return highest_N1, logits_NV.sub_(highest_N1).exp_().sum(dim=-1, keepdim=True), logit_N1


def exponentials_(logits_NV: Tensor, highest_N1: Tensor, scale_N1: Tensor) -> None:
    """Replace logits by exp(logit - highest) × scale. Scaled in float32: the sum of a row may be beyond float16."""
    logits_NV.copy_(logits_NV.float().sub_(highest_N1).exp_().mul_(scale_N1))


class RowKernels(NamedTuple):
    """Both functions, plain or compiled."""

    statistics: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    exponentials_: Callable[[Tensor, Tensor, Tensor], None]


PLAIN = RowKernels(statistics, exponentials_)


def row_kernels(device: torch.device) -> RowKernels:
    """The functions for a device: compiled on a GPU. Inside torch.compile, which fuses them itself, plain."""
    return compiled("cuda") if device.type == "cuda" and not torch.compiler.is_compiling() else PLAIN


@functools.cache
def compiled(kind: str) -> RowKernels:
    """The functions, which compile for a kind of device on their first call. Plain ones, with a warning, if compilation
    fails here. The second number of rows, such as a shorter last chunk's, compiles once more, and then for all numbers.
    """
    if failure := compiler_failure(kind):
        logging.getLogger(__name__).warning(
            "torch.compile fails on this machine: the loss takes several times as long, and more memory. Install a C "
            "compiler, Python's headers and Triton, which comes with torch on Linux. (%s)",
            failure,
        )
        return PLAIN
    return RowKernels(torch.compile(statistics), torch.compile(exponentials_))


@functools.cache
def compiler_failure(kind: str) -> str:
    """How torch.compile fails for a kind of device on this machine, empty if it works."""
    try:
        torch.compile(torch.neg)(torch.zeros(2, device=kind))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ImportError, OSError, subprocess.SubprocessError) as error:
        return (str(error) or type(error).__name__).strip().splitlines()[0]
    return ""
