"""Sharded data parallelism: weights, gradients and optimizer states by torch's fully_shard (FSDP2), block by block.

Each block's weights are gathered just before use (Zhao et al. 2023). With zero_stage 3 they are freed after the forward
pass and gathered again for the backward pass. Otherwise they are kept in between. Gradients are reduce-scattered with
each micro-batch. With `replicate`, each of several groups of ranks holds all shards (hybrid sharding): weights are
gathered within a group, and gradients all-reduced between groups once a step. Master weights and reductions are in
float32. In bfloat16 the gathered weights and all activations are in bfloat16.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from storage.errors import ConfigError
from tasks.pretrain.engines.native import NativeEngine
from tasks.pretrain.engines.shard_layout import ShardLayout, local


class FsdpEngine(NativeEngine):
    """Every replica of a group holds an equal shard of the rows of each parameter."""

    def replica_sizes(self) -> dict[str, int]:
        """Groups, and ranks within a group: consecutive ones, since they communicate most.

        Raises ConfigError for groups of uneven size.
        """
        groups = self.spec.runtime.pretrain.replicate
        if self.replicas % groups:
            raise ConfigError(
                f"runtime.pretrain.replicate is {groups}, but there are {self.replicas} processes to be grouped.",
                "Choose a number that divides processes × hosts / tensor_parallel.",
            )
        return {"replicate": groups, "shard": self.replicas // groups}

    def owners(self) -> ProcessGroup:
        """Those of its group of shards, each with its tensor-parallel ones."""
        if self.tensor_parallel == 1:
            return self.mesh.get_group("shard")
        return self.mesh["shard", "tensor"]._flatten().get_group()

    def parallelize(self) -> nn.Module:
        lower = self.dtype != torch.float32
        precision = MixedPrecisionPolicy(param_dtype=self.dtype if lower else None, reduce_dtype=torch.float32)
        offloads = self.spec.runtime.pretrain.offload == "optimizer"
        pinned = self.world.device.type == "cuda"
        offload = CPUOffloadPolicy(pin_memory=pinned) if offloads else OffloadPolicy()
        for module in (*self.model.blocks, self.model):  # the model last: it takes the parameters outside the blocks
            fully_shard(
                module,
                mesh=self.mesh["replicate", "shard"] if self.mesh["replicate"].size() > 1 else self.mesh["shard"],
                mp_policy=precision,
                offload_policy=offload,
                reshard_after_forward=self.spec.runtime.pretrain.zero_stage == 3,
            )
        self.initialise(torch.device("cpu") if offloads else self.world.device)
        self.model.register_forward_hook(self._drop_whole)
        return self.model

    def _drop_whole(self, *_: object) -> None:
        """Free the weights gathered for a forward pass without a backward pass. They would stay in memory until the
        next step, and `parameters` would be the gathered ones rather than the shards."""
        if not torch.is_grad_enabled():
            for module in (*self.model.blocks, self.model):
                cast(FSDPModule, module).reshard()

    def autocast(self) -> AbstractContextManager[object]:
        """No autocast: the gathered weights are in the lower precision themselves."""
        return nullcontext()

    @property
    def shards(self) -> int:
        """Ranks of a group."""
        return self.mesh["shard"].size()

    def gradient_sync(self, *, last: bool) -> AbstractContextManager[object]:
        """All-reduce between groups once a step, with the last micro-batch."""
        if self.spec.runtime.pretrain.replicate > 1:
            cast(FSDPModule, self.model).set_requires_all_reduce(last)
        return nullcontext()

    def held_layout(self, name: str, parameter: nn.Parameter) -> ShardLayout:
        """This rank's rows of those that its tensor rank holds."""
        share = -(-parameter.shape[0] // self.shards)  # rounded up, as fully_shard does: the last rank may have fewer
        start = min(self.replica % self.shards * share, parameter.shape[0])
        return super().held_layout(name, parameter).cut(start, start + local(parameter).shape[0])

    def copies(self, name: str) -> int:
        """Ranks of one group hold different shards."""
        return super().copies(name) // self.shards

    def is_source(self, name: str) -> bool:
        """True on each rank of the first group, for its own rows."""
        cut = super().copies(name) == self.replicas
        return self.replica < self.shards and (cut or self.tensor_rank == 0)

    @property
    def is_sharded(self) -> bool:
        """True with more than one rank."""
        return self.world.size > 1
