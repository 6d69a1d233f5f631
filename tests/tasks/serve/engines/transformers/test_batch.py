"""Rows that join and leave a batch get the logits that their text alone would, whatever is beside them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3NextConfig

from models.pretrained import load_pretrained
from tasks.serve.engines.transformers.batch import Batch, can_join
from tests.tasks.posttrain.test_virtual_tokens import drawn
from tests.tasks.tiny_model import make_model

WINDOW = 8
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"kv_heads": 2},
    "gpt2": {},
    "mistral": {"sliding_window": WINDOW},
    "gemma3": {"sliding_window": WINDOW, "depth": 3, "global_every": 3},
}


def logits_alone(model: Any, ids: list[int]) -> torch.Tensor:
    found: torch.Tensor = model(torch.tensor([ids])).logits[0, -1]
    return found


@pytest.mark.parametrize(
    ("family", "kind"), [("llama", None), ("llama", "prefix"), ("gpt2", "prompt"), ("mistral", None), ("gemma3", None)]
)
@torch.inference_mode()
def test_a_row_is_as_if_it_were_alone(family: str, kind: str | None, tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", family=family, **SHAPES[family])
    with torch.inference_mode(False):
        model: Any = load_pretrained(drawn(kind, base, tmp_path / "sft") / "model" if kind else base).eval()
    batch, rows, choose = Batch(model), list[list[int]](), random.Random(1)
    for _ in range(60):
        if choose.random() < 0.3 and len(rows) < 4:
            ids, cache, read = choose.choices(range(5, 600), k=choose.choice([1, 3, 20, 40])), None, 0
            while read < len(ids):
                part = ids[read : read + choose.choice([1, 7, 50])]
                (logits_V,), cache = batch.read(part, cache)
                read += len(part)
                assert batch.length(cache) == read
            torch.testing.assert_close(logits_V, logits_alone(model, ids), atol=1e-4, rtol=0)
            batch.join(cache, len(ids))
            rows.append(ids)
        if rows and choose.random() < 0.2:
            kept = [choose.random() < 0.5 for _ in rows]
            batch.keep(kept)
            rows = [row for row, stays in zip(rows, kept, strict=True) if stays]
        if rows:
            new = [choose.randrange(5, 600) for _ in rows]
            rows = [[*row, id] for row, id in zip(rows, new, strict=True)]
            for logits_V, row in zip(batch.step(new), rows, strict=True):
                torch.testing.assert_close(logits_V, logits_alone(model, row), atol=1e-4, rtol=0)


def test_states_that_cannot_be_padded_do_not_join(tmp_path: Path) -> None:
    assert can_join(load_pretrained(make_model(tmp_path / "model")).config)
    assert not can_join(Qwen3NextConfig(layer_types=["linear_attention", "full_attention"] * 24))
