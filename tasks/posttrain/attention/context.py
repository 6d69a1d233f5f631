"""Context parallelism: neighbouring processes share the tokens of each row, for rows whose activations fit no device.

A group of them trains on the same rows. Each computes the layers and the log-probabilities of its own tokens, and
attention sees all of them (models/kernels/exchange.py). Then every process gets the log-probabilities of the whole row,
so each method's loss and measures stay as they are.

Rows are padded on the right, so causal attention needs no mask.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup
from transformers import TrainerCallback

from models.kernels.cross_entropy import IGNORED
from storage.errors import ConfigError
from tasks.posttrain.attention import apart
from tasks.posttrain.attention.apart import Shared
from tasks.posttrain.attention.isolation import attends_apart
from tasks.posttrain.engines import divides
from tasks.stage.runtime import PosttrainRuntime

if TYPE_CHECKING:
    from transformers import Trainer


class _Gather(torch.autograd.Function):
    """The parts (B, T) of all ranks, one after another. Each rank has the same loss, and its own part of the graph.

    Gradients are averaged over all processes, so those of a group are multiplied by its ranks, as its rows count once.
    """

    @staticmethod
    def forward(ctx: Any, part_BT: Tensor, group: ProcessGroup, rank: int, ranks: int) -> Tensor:
        ctx.span, ctx.ranks = slice(rank * part_BT.shape[1], (rank + 1) * part_BT.shape[1]), ranks
        parts = [torch.empty_like(part_BT) for _ in range(ranks)]
        torch.distributed.all_gather(parts, part_BT.contiguous(), group=group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return gradient[:, ctx.span] * ctx.ranks, None, None, None


def share_context(trainer: Trainer, runtime: PosttrainRuntime) -> None:
    """Have groups of `context_parallel` processes share rows. To be called before the trainer divides its model, which
    has TRL's fused head.

    Raises ConfigError for a model whose attention needs a mask, or whose heads the processes can't share.
    """
    ranks, rank, size = runtime.context_parallel, trainer.args.process_index, trainer.args.world_size
    if ranks == 1:
        return
    model: Any = trainer.model
    bare = model.get_base_model() if hasattr(model, "peft_config") else model
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(bare.config, name, None)
        if heads and heads % ranks:
            raise _refusal(bare, f"its {name} are {heads}, which {ranks} processes can't share")
    if divides(runtime):
        trainer.add_callback(_Check())
    else:
        _check(bare, bfloat16=trainer.args.bf16)
    # Every process takes part in making every group
    trainer.context_parallel = ranks  # of ExactMeans
    groups = [torch.distributed.new_group([*range(first, first + ranks)]) for first in range(0, size, ranks)]
    bare.forward = functools.wraps(bare.forward)(
        functools.partial(_forward, bare.forward, groups[rank // ranks], rank % ranks, ranks)
    )


class _Check(TrainerCallback):
    """For a model that an engine divides, once it is divided."""

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        """Check it."""
        _check(model, bfloat16=args.bf16)


def _check(model: Any, *, bfloat16: bool) -> None:
    if not attends_apart(model, bfloat16=bfloat16):
        raise _refusal(model, "its attention needs a mask")


def _refusal(model: Any, why: str) -> ConfigError:
    return ConfigError(
        f"runtime.posttrain.context_parallel can't divide the rows of {model.config.model_type}: {why}.", "Set it to 1."
    )


def _forward(
    whole: Callable[..., Any],
    group: ProcessGroup,
    rank: int,
    ranks: int,
    *args: Any,
    fused_lm_head: bool = False,
    **inputs: Any,
) -> Any:
    """The forward pass of a model with TRL's head. It takes this process's share of the tokens, and gives what the head
    says of all: (B, T - 1), zero where there is no label."""
    if not fused_lm_head:
        apart.shared = None
        return whole(*args, fused_lm_head=fused_lm_head, **inputs)
    ids_BT, labels_BT = inputs.pop("input_ids"), inputs.pop("labels")
    inputs.pop("attention_mask", None)  # of padding on the right, which no token of the text sees
    batch, tokens = ids_BT.shape
    count = torch.arange(tokens, device=ids_BT.device).expand(batch, -1)
    positions_BT = inputs.pop("position_ids", count)
    more = -tokens % ranks  # one more text, without loss
    positions_BT = torch.cat([positions_BT, count[:, :more]], dim=1)
    targets_BT = F.pad(labels_BT[:, 1:], (0, more + 1), value=IGNORED)
    share = (tokens + more) // ranks
    span = slice(rank * share, (rank + 1) * share)
    apart.shared = Shared(group, ranks, positions_BT, span)
    part = {"input_ids": F.pad(ids_BT, (0, more)), "position_ids": positions_BT, "shift_labels": targets_BT}
    outputs = whole(**{name: value[:, span] for name, value in part.items()}, fused_lm_head=True, **inputs)
    gathered = {
        name: _Gather.apply(value, group, rank, ranks)[:, : tokens - 1]  # type: ignore[no-untyped-call]
        for name, value in outputs.items()
        if value.shape == (batch, share)
    }
    return type(outputs)(**gathered)
