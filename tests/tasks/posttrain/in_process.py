"""A method's trainer in this process, and log-probabilities of answers by code that shares nothing with TRL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from models.pretrained import load_pretrained
from models.tokenizer import load_tokenizer
from tasks.posttrain.arguments import training_arguments
from tasks.posttrain.batches import training_order
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.method import Method, TrainerParts
from tasks.posttrain.rows.form import Row
from tasks.posttrain.spec import PosttrainSpec
from tests.runtimes import runtime_of


def parts_of(
    method: Method[Any], config: PosttrainConfig, model: Path, rows: Sequence[Row], folder: Path, **runtime: Any
) -> TrainerParts[Any]:
    """The parts of a stage's trainer, with nothing held out."""
    from datasets import Dataset

    settings = {"threads": 1, "device": "cpu", **runtime}
    spec = PosttrainSpec(
        method=method.name,
        config=config.model_dump(mode="json"),
        model=model,
        base="base",
        rows=[],
        identity="mine",
        runtime=runtime_of(group="posttrain", **settings),
        scratch=folder / "scratch",
        out=folder / "out",
    )
    torch.set_num_threads(1)
    arguments = training_arguments(spec, config, len(rows), 0)
    common = {
        "model": load_pretrained(model),
        "train_dataset": Dataset.from_list(list(rows)),
        "eval_dataset": None,
        "processing_class": load_tokenizer(model),
    }
    return TrainerParts(config, spec.runtime, 128, arguments, common, lambda: load_pretrained(model))


def first_loss(trainer: Any, rows: Sequence[Row]) -> float:
    """The loss of a batch of these rows, before anything was learned."""
    trainer.model.train()
    batch = trainer._prepare_inputs(trainer.data_collator([dict(row) for row in rows]))
    return float(trainer.compute_loss(trainer.model, batch).detach())


def losses_over(make: Callable[[], Any], config: PosttrainConfig, rows: int) -> list[float]:
    """The loss of each step of a trainer, on its rows in the order of training."""
    trainer = make()
    trainer.train_dataset = trainer.train_dataset.select(training_order(config, rows))
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def log_probability(model: Any, prompt: list[int], answer: list[int]) -> float:
    """Log P(answer | prompt) in double precision, of one sequence without padding."""
    ids = torch.tensor([*prompt, *answer])
    with torch.no_grad():
        scores = model(input_ids=ids[None]).logits[0, :-1].double().log_softmax(-1)
    return float(scores.gather(1, ids[1:, None])[len(prompt) - 1 :].sum())
