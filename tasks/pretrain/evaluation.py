"""Validation loss over windows that are evenly spread over the held-out split, and text samples.

Shapes: B windows, T tokens of context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from models.kernels.attention import for_any_shape
from models.kernels.cross_entropy import IGNORED
from models.tokenizer import beginning, load_tokenizer
from models.transformer import Decoder
from storage.shards.token_stream import Stretches, TokenStream
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.engines import Engine
from tasks.pretrain.world import World
from tasks.training.bits_per_byte import Likelihood, read_windows, spread_windows

TEMPERATURE = 0.6  # with more, a small model invents words


def group_losses(
    engine: Engine, stream: Stretches, windows: Sequence[int], context: int, heartbeat: Callable[[], None]
) -> Iterator[tuple[int, Tensor]]:
    """Yield this rank's groups of windows, a micro-batch each: its number, and the sums of nats and of targets.

    Every rank yields equally often, as sharded weights need all ranks for a forward pass: one that has run out of
    windows yields zeros. `heartbeat` is called after each pass.
    """
    size, device = engine.micro_batch, engine.world.device
    for first in range(0, math.ceil(len(windows) / size), engine.data_ranks):
        group = first + engine.data_rank
        ids_BT, targets_BT = read_windows(stream, windows[group * size : (group + 1) * size], context, size)
        ids_BT, targets_BT = ids_BT.to(device), targets_BT.to(device)
        count = (targets_BT != IGNORED).sum()
        loss = engine.loss(ids_BT, targets_BT)
        sums = torch.stack((loss.double() * count, count.double()))
        yield group, sums if count else torch.zeros_like(sums)  # without targets the loss may be NaN
        heartbeat()


class Validation:
    """The same windows each time, shared among the ranks."""

    def __init__(self, stream: TokenStream, *, context: int, tokens: int, world: World) -> None:
        self.stream, self.context, self.world = stream, context, world
        self.windows = spread_windows(stream, context, tokens)

    @for_any_shape()  # without gradients a sliding window is a mask, with which cuDNN may give NaN
    def loss(self, engine: Engine, heartbeat: Callable[[], None]) -> float:
        """The mean cross-entropy in nats a token. Every rank must call it."""
        total = torch.zeros(2, dtype=torch.float64, device=self.world.device)
        for _, sums in group_losses(engine, self.stream, self.windows, self.context, heartbeat):
            total += sums
        nats, tokens = self.world.sum(total).tolist()
        return nats / tokens

    def bits_per_byte(self, loss: float) -> float:
        """The validation loss in bits per byte, comparable across tokenizers."""
        return Likelihood(loss, self.stream.tokens, self.stream.text_bytes).bits_per_byte


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
