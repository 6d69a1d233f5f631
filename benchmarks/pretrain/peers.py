"""The peers in our own environment: a plain loop over a plain GPT-2, and transformers' Trainer with its LLaMA.

Both read random windows of the same memory-mapped ids, with the same allocator settings and threads, fused AdamW and
gradient clipping, and read the loss every ten steps. On a GPU products are taken in bfloat16 (autocast), and the plain
loop is what nanoGPT does: the next batch copied from pinned memory meanwhile, TF32 where float32 is left.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.pretrain.answer import answer
from benchmarks.pretrain.ids import ids_of
from benchmarks.pretrain.plain_gpt import PlainGpt
from benchmarks.pretrain.sizes import BETAS, CLIP, LEARNING_RATE, WARM, WEIGHT_DECAY, Task

Ids = np.memmap[Any, np.dtype[np.uint16]]


class Draws:
    """Batches of random windows and the tokens after each, on the task's device."""

    def __init__(self, task: Task) -> None:
        self.ids, self.generator = ids_of(task), torch.Generator().manual_seed(0)
        self.rows, self.context, self.device = task.size.micro_batch, task.size.context, task.device

    def __call__(self) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(self.ids) - self.context - 1, (self.rows,), generator=self.generator).tolist()
        return self._rows(starts), self._rows([start + 1 for start in starts])

    def _rows(self, starts: list[int]) -> Tensor:
        rows = torch.stack([torch.from_numpy(self.ids[at : at + self.context].astype(np.int64)) for at in starts])
        return rows.pin_memory().to(self.device, non_blocking=True) if self.device == "cuda" else rows


def autocast(task: Task) -> AbstractContextManager[object]:
    """Products in bfloat16, if the task's are."""
    return torch.autocast(task.device, torch.bfloat16) if task.lower else nullcontext()


def wait(task: Task) -> None:
    """Until the GPU has done all that it was given."""
    if task.device == "cuda":
        torch.cuda.synchronize()


def plain_loop(task: Task) -> dict[str, float]:
    """A minimal training loop."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    model: Any = PlainGpt(task.size).to(task.device)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, fused=True)
    if task.side.endswith("compiled"):
        model = torch.compile(model)
    draw = Draws(task)
    batch = draw()
    for step in range(WARM + task.size.steps):
        if step == WARM:
            wait(task)
            started = time.perf_counter()
        for _ in range(task.size.micro_steps):
            with autocast(task):
                loss = model(*batch) / task.size.micro_steps
            batch = draw()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            loss.item()
    wait(task)
    seconds = (time.perf_counter() - started) / task.size.steps
    return {"seconds": seconds, "loss": loss.item() * task.size.micro_steps}


class Windows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Consecutive windows with one token more, since the model shifts them itself."""

    def __init__(self, ids: Ids, context: int) -> None:
        self.ids, self.context = ids, context

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.context

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        start = number * self.context
        window = torch.from_numpy(self.ids[start : start + self.context + 1].astype(np.int64))
        return {"input_ids": window, "labels": window}


def trainer(task: Task) -> dict[str, float]:
    """transformers.Trainer, with everything but training turned off."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    size, at = task.size, []

    class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is not followed, see pyproject.toml
        def on_step_begin(self, arguments: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step in (WARM, WARM + size.steps):
                wait(task)
                at.append(time.perf_counter())

    config = LlamaConfig(
        vocab_size=size.vocab,
        hidden_size=size.width,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.depth,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=size.context + 1,
        tie_word_embeddings=True,
        use_cache=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=WARM + size.steps + 1,
            per_device_train_batch_size=size.micro_batch,
            gradient_accumulation_steps=size.micro_steps,
            learning_rate=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            max_grad_norm=CLIP,
            optim="adamw_torch_fused",
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            use_cpu=task.device == "cpu",
            bf16=task.lower,
            disable_tqdm=True,
            logging_nan_inf_filter=False,
            dataloader_pin_memory=task.device == "cuda",
            torch_compile=task.side.endswith("compiled"),
        )
        data = Windows(ids_of(task), size.context)
        made = Trainer(LlamaForCausalLM(config), arguments, train_dataset=data, callbacks=[Clock()])
        loss = made.train().training_loss
    return {"seconds": (at[1] - at[0]) / size.steps, "loss": loss}


def run(task: Task) -> dict[str, float]:
    """Train as the side does."""
    return trainer(task) if task.side.startswith("transformers") else plain_loop(task)


if __name__ == "__main__":
    answer(run)
