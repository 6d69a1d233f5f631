"""The peer litgpt, in the peers' environment: its model, loss and steps through Fabric, compiled or not."""

from __future__ import annotations

import time

import lightning
import numpy as np
import torch
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.utils import chunked_cross_entropy

from benchmarks.pretrain.answer import answer
from benchmarks.pretrain.ids import ids_of
from benchmarks.pretrain.sizes import BATCH, BETAS, CLIP, CONTEXT, LEARNING_RATE, VOCAB, WARM, WEIGHT_DECAY, Task


def run(task: Task) -> dict[str, float]:
    """Train as litgpt's pretraining does."""
    shape = task.shape
    config = Config(
        block_size=CONTEXT, n_layer=shape.depth, n_embd=shape.width, vocab_size=VOCAB, padded_vocab_size=VOCAB,
        n_head=shape.heads, n_query_groups=shape.kv_heads, rotary_percentage=1.0, parallel_residual=False, bias=False,
        norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", intermediate_size=shape.feed_forward,
    )  # fmt: skip
    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision="32-true")
    fabric.seed_everything(0, verbose=False)
    model = GPT(config)
    model.lm_head.weight = model.transformer.wte.weight
    model = fabric.setup(torch.compile(model) if task.side.endswith("compiled") else model)
    optimizer = fabric.setup_optimizers(
        torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)
    )
    ids = ids_of(task)
    generator, seconds = np.random.default_rng(0), []
    for step in range(WARM + shape.steps):
        started = time.perf_counter()
        starts = generator.integers(0, len(ids) - CONTEXT - 1, BATCH)
        windows = torch.from_numpy(np.stack([ids[start : start + CONTEXT + 1] for start in starts]).astype(np.int64))
        loss = chunked_cross_entropy(model(windows[:, :-1].contiguous()), windows[:, 1:].contiguous())
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=CLIP)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            loss.item()
        seconds.append(time.perf_counter() - started)
    return {"seconds": sum(seconds[WARM:]) / shape.steps, "loss": loss.item()}


if __name__ == "__main__":
    answer(run)
