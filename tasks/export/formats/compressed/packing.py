"""Packs eight 4-bit codes into each int32, as compressed-tensors' `pack-quantized` and vLLM do.

Each code from -8 to 7 is raised by 8. The first of the eight is in the lowest bits, and no bit is left over.

Shapes: R rows of a weight (outputs), C columns (inputs).
"""

from __future__ import annotations

import torch
from torch import Tensor

PER_WORD = 8
_OFFSET = 8


def pack(codes_RC: Tensor) -> Tensor:
    """int8 codes (R, C) to int32 words (R, C / 8). Raises ValueError unless eight divides C."""
    rows, columns = codes_RC.shape
    if columns % PER_WORD:
        raise ValueError(f"{columns} columns aren't a multiple of {PER_WORD}")
    raised = (codes_RC.to(torch.int64) + _OFFSET).view(rows, columns // PER_WORD, PER_WORD)
    words = (raised << _shifts(codes_RC.device)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def unpack(words: Tensor) -> Tensor:
    """int32 words (R, C / 8) to int8 codes (R, C)."""
    raised = (words.to(torch.int64).unsqueeze(-1) >> _shifts(words.device)) & 0xF
    return (raised - _OFFSET).to(torch.int8).flatten(1)


def _shifts(device: torch.device) -> Tensor:
    return 4 * torch.arange(PER_WORD, device=device)
