"""Data parallelism by torch's DistributedDataParallel: a whole model in each replica.

A lower precision applies to matrix products only (autocast).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from tasks.pretrain.engines.native import NativeEngine


class DdpEngine(NativeEngine):
    """Gradients are averaged over the replicas during the backward pass (Li et al. 2020)."""

    def parallelize(self) -> nn.Module:
        self.initialise(self.world.device)
        if self.replicas == 1:
            return self.model
        module = DistributedDataParallel(
            self.model, process_group=self.mesh.get_group("replicas"), broadcast_buffers=False
        )
        if self.world.device.type == "cpu":
            group = self.mesh.get_group("replicas")
            # A lambda: DDP rejects annotations that are strings
            module.register_comm_hook(group, lambda group, bucket: average_each(group, bucket))
        return module

    def gradient_sync(self, *, last: bool) -> AbstractContextManager[object]:
        """All-reduce once a step, with the last micro-batch."""
        if last or not isinstance(self.module, DistributedDataParallel):
            return nullcontext()
        return self.module.no_sync()


def average_each(group: ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average each gradient of a bucket by itself.

    DDP regroups gradients into other buckets after its first step. With more than two ranks, gloo's order of summation
    depends on an element's place in the message, so a resumed run would round differently from an uninterrupted one.
    """
    bucket.buffer().div_(group.size())
    sent = [dist.all_reduce(gradient, group=group, async_op=True).get_future() for gradient in bucket.gradients()]
    return torch.futures.collect_all(sent).then(lambda _: bucket.buffer())  # `gradients` are views into the buffer
