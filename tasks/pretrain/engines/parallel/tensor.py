"""Tensor parallelism: each rank computes its own heads and its own part of the feed-forward layer.

Megatron-LM (Shoeybi et al. 2019), section 3: of a pair of layers, the first is column-parallel and the second
row-parallel, followed by one all-reduce. The model does not know: its layers are replaced from outside, and its number
of heads is lowered. Parameters stay plain tensors rather than DTensors, so that the fused AdamW, DDP and FSDP take them
as they are. Embedding and output layer are sharded by vocabulary if it is divisible (`vocabulary.py`). Norms, learned
positions and the residual stream are replicated. So are the norms of heads (Qwen3, Gemma 3), but as each rank uses them
for its own heads, their gradients are summed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from models.presets import ForeignShape, Shape
from models.transformer import Attention, FeedForward, HeadNorm, Transformer
from tasks.pretrain.engines.parallel.collectives import AllReduceBackward, AllReduceForward
from tasks.pretrain.engines.parallel.vocabulary import VocabParallelEmbedding, VocabParallelHead
from tasks.pretrain.engines.shard_layout import ShardLayout, share_of


def layout_of(name: str, shape: Shape, *, rank: int, ranks: int) -> ShardLayout | None:
    """The shard of a parameter of the whole model that a rank holds. None if the parameter is not sharded."""
    if ranks == 1 or isinstance(shape, ForeignShape):
        return None
    layer, _, kind = name.rpartition(".")
    width, head, feed_forward = shape.width, shape.head_dim, shape.feed_forward
    if layer in ("embedding", "head"):
        rows = shape.vocab_size
        return None if rows % ranks else ShardLayout(torch.Size((rows, width)), share_of((rows,), rank, ranks))
    by_rows = {
        "attention.qkv": (shape.heads * head, shape.kv_heads * head, shape.kv_heads * head),
        "feed_forward.up": (feed_forward,) * (2 if shape.gated else 1),
    }
    by_columns = {"attention.output": shape.heads_width, "feed_forward.down": feed_forward}
    for end, parts in by_rows.items():
        if layer.endswith(end):
            size = (sum(parts), width) if kind == "weight" else (sum(parts),)
            return ShardLayout(torch.Size(size), share_of(parts, rank, ranks))
    for end, columns in by_columns.items():
        if layer.endswith(end) and kind == "weight":
            return ShardLayout(torch.Size((width, columns)), ((0, width),), share_of((columns,), rank, ranks)[0])
    return None


@torch.no_grad()
def shard_model(model: Transformer, mesh: DeviceMesh) -> None:
    """Replace the layers of a whole model with this rank's shards. Its loss stays the same."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    for name, parameter in model.named_parameters():
        layout = layout_of(name, model.shape, rank=rank, ranks=ranks)
        if layout is not None:
            parameter.data = layout.of(parameter.data)
    group = mesh.get_group()
    for module in list(model.modules()):
        if isinstance(module, Attention):
            module.heads //= ranks
            module.kv_heads //= ranks
            module.add_module("qkv", ColumnParallelLinear(module.qkv, group))
            module.add_module("output", RowParallelLinear(module.output, group))
            for name in ("q_norm", "k_norm"):
                if (norm := getattr(module, name)) is not None:
                    module.add_module(name, ParallelHeadNorm(norm, group))
        elif isinstance(module, FeedForward):
            module.add_module("up", ColumnParallelLinear(module.up, group))
            module.add_module("down", RowParallelLinear(module.down, group))
    if model.shape.vocab_size % ranks == 0:
        first = rank * (model.shape.vocab_size // ranks)
        model.add_module("embedding", VocabParallelEmbedding(model.embedding, first, group))
        model.add_module("head", VocabParallelHead(model.head, first, group))


class _ParallelLinear(nn.Module):
    """A linear layer of which this rank holds a shard, under the same parameter names."""

    def __init__(self, layer: nn.Linear, group: ProcessGroup) -> None:
        super().__init__()
        self.weight, self.bias, self.group = layer.weight, layer.bias, group


class ColumnParallelLinear(_ParallelLinear):
    """Each rank computes some of the outputs, from all inputs."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = AllReduceBackward.apply(x_BTC, self.group)  # type: ignore[no-untyped-call]
        return F.linear(x_BTC, self.weight, self.bias)


class RowParallelLinear(_ParallelLinear):
    """Each rank computes a summand of all outputs, from some of the inputs. The bias is added once, to the sum."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        y_BTC: Tensor = AllReduceForward.apply(F.linear(x_BTC, self.weight), self.group)  # type: ignore[no-untyped-call]
        return y_BTC if self.bias is None else y_BTC + self.bias


class ParallelHeadNorm(nn.Module):
    """Each rank normalises its own heads, with the whole weight."""

    def __init__(self, norm: HeadNorm, group: ProcessGroup) -> None:
        super().__init__()
        self.weight, self.normalised, self.group = norm.weight, norm.normalised, group

    def forward(self, x_BTHD: Tensor) -> Tensor:
        weight_D: Tensor = AllReduceBackward.apply(self.weight, self.group)  # type: ignore[no-untyped-call]
        return self.normalised(x_BTHD, weight_D)
