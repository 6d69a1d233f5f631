"""Context parallelism: each rank has a part of every row's tokens, and attention sees all of them (exchange.py).

Weights are whole on each rank, and gradients are averaged over these ranks as over those of other rows. The model knows
only its `share`.

Shapes: B batch, T tokens of this rank, H heads, D head size.
"""

from __future__ import annotations

import functools

from torch import Tensor
from torch.distributed import ProcessGroup

from models.kernels.attention import Mask, attend
from models.kernels.exchange import attend_to_all
from models.transformer import Attention, Transformer


def share_context(model: Transformer, rank: int, ranks: int, group: ProcessGroup) -> None:
    """Give this rank its share of the tokens. Its loss is then that of its own targets."""
    model.share = (rank, ranks)

    def attend_masked(q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, mask: Mask) -> Tensor:
        return attend_to_all(functools.partial(attend, mask=mask), q_BTHD, k_BTHD, v_BTHD, group=group, ranks=ranks)

    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = attend_masked
