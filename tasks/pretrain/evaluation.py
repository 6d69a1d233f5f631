"""Validation loss over windows that are evenly spread over the held-out split, the losses of single rows, and text
samples.

Shapes: N rows, B rows of a pass, T tokens, K buckets of positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.kernels.attention import for_any_shape
from models.kernels.cross_entropy import IGNORED
from models.tokenizer import beginning, load_tokenizer
from models.transformer import Decoder, share_of_tokens
from storage.shards.arrays import Int64
from storage.shards.token_stream import TokenStream
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.engines import Engine
from tasks.pretrain.world import World
from tasks.training.bits_per_byte import Likelihood, read_windows, spread_windows

TEMPERATURE = 0.6  # with more, a small model invents words


@dataclass(frozen=True)
class Rows:
    """Rows to measure, of one length. A target that is IGNORED isn't measured."""

    ids_NT: Int64
    targets_NT: Int64


class Validation:
    """The same windows each time, shared among the ranks."""

    def __init__(self, stream: TokenStream, *, context: int, tokens: int, world: World) -> None:
        self.stream, self.context, self.world = stream, context, world
        self.windows = spread_windows(stream, context, tokens)

    @for_any_shape()  # without gradients a sliding window is a mask, with which cuDNN may give NaN
    def loss(self, engine: Engine, heartbeat: Callable[[], None]) -> float:
        """The mean cross-entropy in nats a token. Every rank must call it."""
        size, device = engine.micro_batch, engine.world.device
        total = torch.zeros(2, dtype=torch.float64, device=device)
        # Each rank makes equally many passes, as sharded weights need all ranks for one
        for first in range(0, math.ceil(len(self.windows) / size), engine.data_ranks):
            group = first + engine.data_rank
            part = self.windows[group * size : (group + 1) * size]
            ids_BT, targets_BT = (one.to(device) for one in read_windows(self.stream, part, self.context, size))
            count = (targets_BT != IGNORED).sum()
            loss = engine.loss(ids_BT, targets_BT)
            if count:  # without targets the loss may be NaN
                total += torch.stack((loss.double() * count, count.double()))
            heartbeat()
        nats, tokens = self.world.sum(total).tolist()
        return nats / tokens

    def bits_per_byte(self, loss: float) -> float:
        """The validation loss in bits per byte, comparable across tokenizers."""
        return Likelihood(loss, self.stream.tokens, self.stream.text_bytes).bits_per_byte


@torch.no_grad()
def bucket_sums(engine: Engine, rows: Rows, edges: list[int], heartbeat: Callable[[], None]) -> Tensor:
    """(N, K, 3) for each row and bucket of positions, the sums of nats, of targets than which no token is likelier, and
    of targets. Every rank must call it, and gets the sums of all."""
    head, device = engine.model.head, engine.world.device
    ranks = engine.model.share[1]  # that share the tokens of a row
    count, length = rows.ids_NT.shape
    padded = -(-length // ranks) * ranks
    size, buckets = engine.micro_batch, len(edges) - 1
    bucket_T = torch.from_numpy(np.searchsorted(edges, np.arange(padded), side="right") - 1).clamp(max=buckets - 1)
    passes = math.ceil(count / (size * engine.data_ranks))
    sums = torch.zeros((passes * engine.data_ranks * size, buckets, 3), dtype=torch.float64)
    for number in range(passes):
        group = number * engine.data_ranks + engine.data_rank
        part = slice(group * size, (group + 1) * size)
        ids_BT, targets_BT = torch.zeros((size, padded), dtype=torch.int64), torch.full((size, padded), IGNORED)
        chosen = torch.from_numpy(rows.ids_NT[part]), torch.from_numpy(rows.targets_NT[part])
        for whole, some in zip((ids_BT, targets_BT), chosen, strict=True):
            whole[: len(some), :length] = some
        head.record = []
        engine.loss(ids_BT.to(device), targets_BT.to(device))
        recorded, head.record = head.record, None
        if recorded:  # on the ranks that have the output layer
            mine = share_of_tokens(padded, engine.model.share)
            values_BT3 = torch.zeros((size, padded, 3), dtype=torch.float64)
            values_BT3[:, mine, :2] = torch.cat(recorded).view(size, -1, 2).double().cpu()
            values_BT3[:, mine, 2] = 1
            values_BT3[targets_BT == IGNORED] = 0
            sums[part].index_add_(1, bucket_T, values_BT3)
        heartbeat()
    return engine.world.sum(sums.to(device))[:count].cpu()


def write_samples(model: Decoder, config: PretrainConfig, tokenizer_folder: Path, path: Path, *, eos_id: int) -> None:
    """Write greedy and sampled continuations of the profile's prompts as Markdown, up to `eos_id`. Deterministic on a
    CPU."""
    tokenizer = load_tokenizer(tokenizer_folder)
    begun = beginning(tokenizer) or [eos_id]
    lines = ["# What the base model writes", ""]
    for number, prompt in enumerate(config.sample_prompts):
        lines += [f"## {prompt}", ""]
        ids = [*begun, *tokenizer.encode(prompt, split_special_tokens=True)]
        for name, temperature in (("greedy", 0.0), (f"temperature {TEMPERATURE}", TEMPERATURE)):
            generator = torch.Generator().manual_seed(config.seed + number)
            continued = model.generate(
                torch.tensor([ids]), config.sample_tokens, temperature=temperature, stop=eos_id, generator=generator
            )[0].tolist()
            text = tokenizer.decode(continued[len(begun) :], skip_special_tokens=True)
            lines += [f"**{name}**", "", *(f"> {line}" for line in text.splitlines() or [""]), ""]
    path.write_text("\n".join(lines), encoding="utf-8")
