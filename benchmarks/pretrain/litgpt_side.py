"""The peer litgpt, in the peers' environment: its model, loss and steps through Fabric, compiled or not."""

from __future__ import annotations

import time

import lightning
import torch
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.utils import chunked_cross_entropy

from benchmarks.pretrain.answer import answer
from benchmarks.pretrain.peers import Draws, wait
from benchmarks.pretrain.sizes import BETAS, CLIP, LEARNING_RATE, WARM, WEIGHT_DECAY, Task


def run(task: Task) -> dict[str, float]:
    """Train as litgpt's pretraining does."""
    size = task.size
    config = Config(
        block_size=size.context,
        n_layer=size.depth,
        n_embd=size.width,
        vocab_size=size.vocab,
        padded_vocab_size=size.vocab,
        n_head=size.heads,
        n_query_groups=size.kv_heads,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        intermediate_size=size.feed_forward,
    )
    fabric = lightning.Fabric(accelerator=task.device, devices=1, precision="bf16-mixed" if task.lower else "32-true")
    fabric.seed_everything(0, verbose=False)
    model = GPT(config)
    model.lm_head.weight = model.transformer.wte.weight
    model = fabric.setup(torch.compile(model) if task.side.endswith("compiled") else model)
    optimizer = fabric.setup_optimizers(
        torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)
    )
    draw = Draws(task)
    chunk = 0 if task.device == "cuda" else 128  # tokens at a time: all is faster on a GPU; 128 is its default
    for step in range(WARM + size.steps):
        if step == WARM:
            wait(task)
            started = time.perf_counter()
        for _ in range(size.micro_steps):
            ids, targets = draw()
            loss = chunked_cross_entropy(model(ids), targets, chunk_size=chunk)
            fabric.backward(loss / size.micro_steps)
        fabric.clip_gradients(model, optimizer, max_norm=CLIP)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            loss.item()
    wait(task)
    return {"seconds": (time.perf_counter() - started) / size.steps, "loss": loss.item()}


if __name__ == "__main__":
    answer(run)
