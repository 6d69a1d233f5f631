"""Fine-tuning on conversations of uneven lengths, a row for each and packed: `python -m benchmarks.posttrain.packing`.

Forward and backward passes of the micro-batches that `sft` would make, in CPU seconds of a process, so a machine that
is busy with something else counts for less, and the memory that they add to it. Packed rows are kept apart by a mask,
as transformers does it, or by attention of each conversation, as `sft` does where the model can.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from models.kernels.cross_entropy import IGNORED
from tasks.posttrain.attention.isolation import isolate
from tasks.posttrain.conversations.collate import collate
from tasks.posttrain.conversations.layout import Layout, packed, padded, tokens_and_places

# vocabulary, width, feed-forward, depth, heads, shared heads, context, conversations, their median length
SHAPES = {
    "1.3M": (4096, 128, 384, 4, 4, 2, 256, 64, 100),
    "1.3M long": (4096, 128, 384, 4, 4, 2, 32768, 32, 1000),
    "SmolLM2-135M": (49152, 576, 1536, 30, 9, 3, 2048, 16, 100),
}
PACKING = ("no", "by a mask", "yes")


def measure(shape: str, global_batch: int, micro_batch: int, packing: str, threads: int) -> list[str]:
    """A row of the table."""
    vocabulary, width, feed_forward, depth, heads, shared, context, count, median = SHAPES[shape]
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=feed_forward,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            num_key_value_heads=shared,
            max_position_embeddings=context,
            tie_word_embeddings=True,
        )
    )
    drawn = random.Random(0)
    lengths = [min(context, max(16, round(median * drawn.lognormvariate(0, 0.9)))) for _ in range(count)]
    conversations = [[drawn.randrange(vocabulary) for _ in range(length)] for length in lengths]
    if packing == "no":
        layout = padded(count, micro_batch, global_batch // micro_batch, 1)
    else:
        layout = packed(lengths, global_batch, context, micro_batch, 1)
    if packing == "yes":
        isolate(model)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = _seconds(lambda: _pass(model, conversations, layout, packing != "no"))
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
    tokens, places = tokens_and_places(layout.batches, lengths)
    counts = f"{context:,}", str(micro_batch), packing, str(len(layout.batches)), str(sum(map(len, layout.batches)))
    return [shape, *counts, f"{1 - tokens / places:.1%}", f"{tokens / seconds:,.0f}", f"{peak:.2f}"]


def _seconds(work: Callable[[], None], times: int = 2) -> float:
    """CPU seconds over all threads, the smaller of two."""
    measured = []
    for _ in range(times):
        began = time.process_time()
        work()
        measured.append(time.process_time() - began)
    return min(measured)


def _pass(model: nn.Module, conversations: list[list[int]], layout: Layout, packing: bool) -> None:
    for batch in layout.batches:
        rows: list[list[dict[str, Any]]] = [
            [{"input_ids": conversations[place], "labels": conversations[place], "place": place} for place in row]
            for row in batch
        ]
        inputs = collate(rows, 0, packed=packing)
        labels = inputs.pop("labels")
        del inputs["segments"]
        logits = model(**inputs, use_cache=False).logits[:, :-1].flatten(0, 1)
        nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=IGNORED).backward()
    model.zero_grad()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES], default=["1.3M"])
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, nargs="+", default=[16, 4, 1])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--packing", nargs="+", choices=PACKING, default=[*PACKING])
    asked = parser.parse_args()
    names = ["model", "context", "micro-batch", "packing", "passes", "rows", "padding", "tokens a CPU second", "GB"]
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for shape, micro_batch, packing in itertools.product(asked.shapes, asked.micro_batch, asked.packing):
        with multiprocessing.get_context("spawn").Pool(1) as process:  # its peak memory is that of this row alone
            row = process.apply(measure, (shape, asked.global_batch, micro_batch, packing, asked.threads))
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
