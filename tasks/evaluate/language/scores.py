"""A model's scores of each token of a batch: its loss, and the model's confidence in the token it finds most likely.

Shapes: B windows, T tokens, P places (B·T), N targets, M candidates among them, V ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from models.kernels.cross_entropy import IGNORED
from models.likelihood import MOST_LOGITS
from models.pretrained import context_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

AT_ONCE = {
    False: 1 << 22,
    True: 1 << 28,
}  # logits whose exponentials are summed together, by whether the device is a GPU: a CPU's cache holds this many


class Scores(NamedTuple):
    """Scores of N targets, in the order of rows and places."""

    nats: NDArray[np.float32]
    confidence: NDArray[np.float32]  # probability of the most likely id
    right: NDArray[np.bool_]  # whether that is the target


class Scorer(Protocol):
    """A model that scores targets."""

    @property
    def device(self) -> torch.device:
        """The device that it expects ids on."""
        ...

    @property
    def dtype(self) -> str:
        """The dtype of its weights."""
        ...

    @property
    def vocab_size(self) -> int:
        """The number of ids, V."""
        ...

    @property
    def context(self) -> int:
        """The maximum number of tokens that it sees at a time."""
        ...

    def __call__(self, ids_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, Scores]:
        """The summed loss of the targets that are not ignored, and each one's scores."""
        ...


@dataclass(frozen=True)
class TransformersScorer(Scorer):
    """An open model of transformers, which scores by one forward pass."""

    model: PreTrainedModel

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    @cached_property
    def vocab_size(self) -> int:
        return int(self.model.config.vocab_size)

    @cached_property
    def context(self) -> int:
        return context_of(self.model.config)

    def __call__(self, ids_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, Scores]:
        return score(self.model, ids_BT, targets_BT)


@torch.no_grad()
def score(model: PreTrainedModel, ids_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, Scores]:
    """The summed loss of the targets that are not ignored, and each one's scores, by one forward pass.

    The sum has the bits of `F.cross_entropy(…, reduction="sum")`, which takes the same two steps.
    """
    logs_PV = model(input_ids=ids_BT, use_cache=False).logits.float().flatten(0, 1)
    targets_P = targets_BT.flatten()
    rows = max(1, AT_ONCE[logs_PV.device.type == "cuda"] // logs_PV.shape[1])
    for part_PV in logs_PV.split(rows):  # in place: a second array of this size would cost more than the exponentials
        part_PV.copy_(F.log_softmax(part_PV, 1))
    total = F.nll_loss(logs_PV, targets_P, ignore_index=IGNORED, reduction="sum")
    place_N = (targets_P != IGNORED).nonzero().squeeze(1)
    nats_N = F.nll_loss(logs_PV, targets_P, ignore_index=IGNORED, reduction="none")[place_N]
    best_N = logs_PV.amax(1)[place_N]
    right_N = best_N == -nats_N
    # Among equally likely ids the first is the prediction. Only candidates are searched for it, as a search of all
    # rows would take three times as long as their maximum
    candidate_M = right_N.nonzero().squeeze(1)
    at_M = place_N[candidate_M]
    right_N[candidate_M] = logs_PV[at_M].argmax(1) == targets_P[at_M]
    return total, Scores(nats_N.cpu().numpy(), best_N.exp().cpu().numpy(), right_N.cpu().numpy())


@dataclass
class Recorder:
    """A loss for `likelihood` (tasks/training/bits_per_byte.py) that keeps the scores of every target.

    Batches are split as `mean_loss` of models/likelihood.py splits them and summed in its order, so that the mean has
    the same bits. `begin` are ids before each window that bear no loss.
    """

    scorer: Scorer
    begin: Sequence[int] = ()
    parts: list[Scores] = field(default_factory=list)

    def __call__(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """The mean over all targets in nats."""
        before = torch.tensor(self.begin, dtype=ids_BT.dtype).expand(len(ids_BT), -1)
        device = self.scorer.device
        ids_BT = torch.cat([before, ids_BT], 1).to(device)
        targets_BT = torch.cat([torch.full_like(before, IGNORED), targets_BT], 1).to(device)
        rows = max(1, MOST_LOGITS // (ids_BT.shape[1] * self.scorer.vocab_size))
        total = torch.zeros((), dtype=torch.float64, device=device)
        for ids, targets in zip(ids_BT.split(rows), targets_BT.split(rows), strict=True):
            nats, scores = self.scorer(ids, targets)
            total += nats
            self.parts.append(scores)
        return total / (targets_BT != IGNORED).sum()

    def scores(self) -> Scores:
        """The scores of all targets so far."""
        return Scores(*(np.concatenate(column) for column in zip(*self.parts, strict=True)))
