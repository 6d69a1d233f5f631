"""Divides each global batch among ranks and micro-batches. No torch: `plan` needs it too."""

from __future__ import annotations

import functools

from storage.errors import ConfigError
from tasks.pretrain.config import PretrainConfig
from tasks.stage.runtime import PretrainRuntime
from tasks.training.batches import BatchShare, share_batch

CPU_TOKENS, GPU_TOKENS = 4_096, 32_768  # of a forward pass
PIPELINE_FILL = 4  # micro-batches per stage: with these, stages are idle for less than a fifth of a step


def rank_share(config: PretrainConfig, runtime: PretrainRuntime, *, ranks: int, cuda: bool) -> BatchShare:
    """One data-parallel rank's share of a full global batch. During batch warmup it is smaller. Sequences of a base
    whose context isn't known yet count as short.

    Raises ConfigError if a batch, or the first one of a warmup, can't be divided evenly.
    """
    default = functools.partial(
        default_micro_batch, context=config.sequence or 1, cuda=cuda, stages=runtime.pipeline_parallel
    )
    share = share_batch(
        config.global_batch,
        ranks,
        micro_batch=runtime.micro_batch,
        default=default,
        names=("pretrain.global_batch", "runtime.pretrain.micro_batch"),
    )
    if config.batch(1) % ranks:
        raise ConfigError(
            f"The first batch is {config.batch(1)}, which {ranks} processes can't share evenly.",
            "Lower pretrain.batch_warmup_parts, or the number of processes.",
        )
    return share


def default_micro_batch(share: int, *, context: int, cuda: bool, stages: int = 1) -> int:
    """The most sequences of `context` tokens that divide a rank's `share` of the global batch, fit the usual device,
    and leave enough micro-batches to fill a pipeline of `stages`."""
    most = min((GPU_TOKENS if cuda else CPU_TOKENS) // context, share)
    if stages > 1:
        most = min(most, share // (PIPELINE_FILL * stages))
    most = max(1, most)
    return next(size for size in range(most, 0, -1) if share % size == 0)
