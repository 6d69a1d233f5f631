"""A whole model in each data rank: torch's own DistributedDataParallel, nothing sharded, nothing to compile.

In bfloat16 and float16 only the matrix products are (autocast).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tasks.pretrain.engines.native import NativeEngine


class DdpEngine(NativeEngine):
    """Gradients are averaged over the data ranks while the backward pass still runs (Li et al. 2020)."""

    @property
    def offers(self) -> frozenset[str]:
        """All, where a rank has whole matrices and sees every gradient that may overflow."""
        return frozenset() if self.tensor_parallel > 1 else frozenset({"muon", "float16", "float8"})

    def spread(self) -> nn.Module:
        """As in NativeEngine."""
        self.fill(self.world.device)
        if self.data_ranks == 1:
            return self.model
        return DistributedDataParallel(self.model, process_group=self.mesh.get_group("data"))

    def synced(self, *, last: bool) -> AbstractContextManager[object]:
        """Gradients go to the others once a step, with the last micro-batch."""
        if last or not isinstance(self.module, DistributedDataParallel):
            return nullcontext()
        return self.module.no_sync()
