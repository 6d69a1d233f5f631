"""The loss of a model of transformers on windows of text, as its own classes compute it.

Only transformers knows what a third-party model computes: our decoder carries three architectures, without their
variants.

Shapes: B windows, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from models.kernels.cross_entropy import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_LOGITS = 1 << 27  # in a forward pass: half a gigabyte in float32


@torch.no_grad()
def mean_loss(model: PreTrainedModel, ids_BT: Tensor, targets_BT: Tensor, begin: Sequence[int] = ()) -> Tensor:
    """The mean over all targets in nats, on the model's device. `begin` are the ids that the tokenizer puts before each
    text. They precede each window, and bear no loss."""
    before = torch.tensor(begin, dtype=ids_BT.dtype).expand(len(ids_BT), -1)
    ids_BT = torch.cat([before, ids_BT], 1).to(model.device)
    targets_BT = torch.cat([torch.full_like(before, IGNORED), targets_BT], 1).to(model.device)
    rows = max(1, MOST_LOGITS // (ids_BT.shape[1] * int(model.config.vocab_size)))
    total = torch.zeros((), dtype=torch.float64, device=model.device)
    for ids, targets in zip(ids_BT.split(rows), targets_BT.split(rows), strict=True):
        logits = model(input_ids=ids, use_cache=False).logits.float()
        total += F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / (targets_BT != IGNORED).sum()
