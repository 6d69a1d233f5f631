"""Data parallelism by torch's DistributedDataParallel: a whole model in each data rank.

Lower precisions are those of matrix products only (autocast).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tasks.pretrain.engines.native import NativeEngine


class DdpEngine(NativeEngine):
    """Gradients are averaged over the data ranks during the backward pass (Li et al. 2020)."""

    def parallelize(self) -> nn.Module:
        self.initialise(self.world.device)
        if self.data_ranks == 1:
            return self.model
        return DistributedDataParallel(self.model, process_group=self.mesh.get_group("data"))

    def gradient_sync(self, *, last: bool) -> AbstractContextManager[object]:
        """All-reduce once a step, with the last micro-batch."""
        if last or not isinstance(self.module, DistributedDataParallel):
            return nullcontext()
        return self.module.no_sync()
