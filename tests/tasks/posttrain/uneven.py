"""Conversations and pairs of very different lengths: means over batches and means over tokens differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from models.kernels.cross_entropy import IGNORED
from models.transformer import Transformer
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.tasks.tiny_model import ANIMALS, PLACES, answer, question


def uneven_rows() -> list[dict[str, Any]]:
    """Conversations whose answers have one to eight sentences."""
    return [
        {
            "id": f"{animal}-{place}",
            "source": "test",
            "messages": [*question(animal, number), long_answer(place, number % 8)],
        }
        for animal in ANIMALS[:7]
        for number, place in enumerate(PLACES)
    ]


def uneven_pairs() -> list[dict[str, Any]]:
    return [
        {
            "id": row["id"],
            "source": "test",
            "prompt": row["messages"][:1],
            "chosen": row["messages"][1:],
            "rejected": [answer("nowhere" + " at all" * (number % 5))],
        }
        for number, row in enumerate(uneven_rows())
    ]


def long_answer(place: str, more: int) -> dict[str, str]:
    return {"role": "assistant", "content": f"It lives in the {place}." + " Nobody has seen it there." * more}


def output(folder: Path, stage: str, **runtime: Any) -> Output:
    """On one CPU thread, with these settings of the runtime."""
    return Output.at(folder, stage=stage, runtime=runtime_of(group="posttrain", threads=1, device="cpu", **runtime))


def token_means(model: Transformer, rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Loss and accuracy over the supervised tokens of rendered conversations, one conversation at a time."""
    nats = right = tokens = 0.0
    for row in rows:
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])[1:]
        with torch.no_grad():
            log_probabilities = model(ids)[0, :-1].log_softmax(-1)
        learned = labels != IGNORED
        nats -= float(log_probabilities[learned, labels[learned]].sum())
        right += float((log_probabilities[learned].argmax(-1) == labels[learned]).sum())
        tokens += float(learned.sum())
    return nats / tokens, right / tokens
