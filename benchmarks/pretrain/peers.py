"""The peers in our own environment: a plain loop over a plain GPT-2, and transformers' Trainer with its LLaMA.

Both read random windows of the same memory-mapped ids, with the same allocator settings and threads, fused AdamW and
gradient clipping, and read the loss every ten steps.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.pretrain.answer import answer
from benchmarks.pretrain.ids import ids_of
from benchmarks.pretrain.plain_gpt import PlainGpt
from benchmarks.pretrain.sizes import BATCH, BETAS, CLIP, CONTEXT, LEARNING_RATE, VOCAB, WARM, WEIGHT_DECAY, Task


def draw(ids: np.memmap[Any, np.dtype[np.uint16]], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of random windows and the tokens after each."""
    starts = torch.randint(len(ids) - CONTEXT - 1, (BATCH,), generator=generator).tolist()
    inputs = torch.stack([torch.from_numpy(ids[start : start + CONTEXT].astype(np.int64)) for start in starts])
    targets = torch.stack([torch.from_numpy(ids[start + 1 : start + 1 + CONTEXT].astype(np.int64)) for start in starts])
    return inputs, targets


def plain_loop(task: Task) -> dict[str, float]:
    """A minimal training loop."""
    torch.manual_seed(0)
    model = PlainGpt(task.shape)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, fused=True)
    ids, generator = ids_of(task), torch.Generator().manual_seed(0)
    batch = draw(ids, generator)
    seconds: list[float] = []
    for step in range(WARM + task.shape.steps):
        started = time.perf_counter()
        loss = model(*batch)
        batch = draw(ids, generator)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            loss.item()
        seconds.append(time.perf_counter() - started)
    return {"seconds": sum(seconds[WARM:]) / task.shape.steps, "loss": loss.item()}


class Windows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Consecutive windows with one token more, since the model shifts them itself."""

    def __init__(self, ids: np.memmap[Any, np.dtype[np.uint16]]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return (len(self.ids) - 1) // CONTEXT

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        window = torch.from_numpy(self.ids[number * CONTEXT : (number + 1) * CONTEXT + 1].astype(np.int64))
        return {"input_ids": window, "labels": window}


def trainer(task: Task) -> dict[str, float]:
    """transformers.Trainer, with everything but training turned off."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    shape, torch_seconds = task.shape, []

    class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is not followed, see pyproject.toml
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            torch_seconds.append(time.perf_counter())

    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=shape.width, intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.depth, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        max_position_embeddings=CONTEXT + 1, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=WARM + shape.steps + 1, per_device_train_batch_size=BATCH, learning_rate=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY, adam_beta1=BETAS[0], adam_beta2=BETAS[1], max_grad_norm=CLIP,
            optim="adamw_torch_fused", logging_steps=10, save_strategy="no", report_to=[], use_cpu=True, bf16=False,
            disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        made = Trainer(LlamaForCausalLM(config), arguments, train_dataset=Windows(ids_of(task)), callbacks=[Clock()])
        loss = made.train().training_loss
    seconds = (torch_seconds[WARM + shape.steps] - torch_seconds[WARM]) / shape.steps
    return {"seconds": seconds, "loss": loss}


if __name__ == "__main__":
    answer(lambda task: trainer(task) if task.side == "transformers Trainer" else plain_loop(task))
