"""Conversations in one row don't affect each other: logits, losses and gradients are those of each by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from models.config import ModelConfig
from models.convert import to_transformers
from models.kernels.cross_entropy import IGNORED
from models.presets import derive
from models.pretrained import load_pretrained
from models.transformer import Transformer
from storage.errors import ConfigError
from tasks.posttrain.attention.apart import PACKED
from tasks.posttrain.attention.isolation import isolate
from tasks.posttrain.conversations.collate import collate
from tests.tasks.foreign import make_foreign

LENGTHS = [[13, 30, 5], [40], [21, 20]]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {},
    "mistral": {"sliding_window": 7},
    "qwen3": {},
    "gemma3": {"sliding_window": 7, "global_every": 2},
}


def conversations() -> list[list[dict[str, Any]]]:
    generator = torch.Generator().manual_seed(3)
    rows = []
    for row in LENGTHS:
        drawn = [torch.randint(600, (length,), generator=generator).tolist() for length in row]
        rows.append(
            [
                {"input_ids": ids, "labels": [IGNORED] * (len(ids) // 2) + ids[len(ids) // 2 :], "place": 0}
                for ids in drawn
            ]
        )
    return rows


def ours(family: str) -> Transformer:
    config = ModelConfig(family=family, depth=2, width=64, heads=4, context=64, **FAMILIES[family])
    return Transformer(derive(config, 600), torch.Generator().manual_seed(1)).eval()


def logits_of(model: nn.Module, ids: Tensor, positions: Tensor | None) -> Tensor:
    if isinstance(model, Transformer):
        return cast(Tensor, model(ids, positions_BT=positions))
    found: Tensor = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    return found


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
    )


@pytest.mark.parametrize("whose", ["ours", "transformers"])
@pytest.mark.parametrize("family", FAMILIES)
def test_in_one_row_they_have_the_logits_losses_and_gradients_of_each_alone(whose: str, family: str) -> None:
    model: nn.Module = ours(family) if whose == "ours" else to_transformers(ours(family))
    if whose == "transformers":
        isolate(cast(Any, model))
        assert cast(Any, model).config._attn_implementation == PACKED
    rows = conversations()
    batch = collate(rows, 0, packed=True)
    together = logits_of(model, batch["input_ids"], batch["position_ids"])
    loss = loss_of(together, batch["labels"])
    loss.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    losses = torch.zeros(())
    for logits, conversation in alone(rows, together):
        ids, labels = (torch.tensor([conversation[name]]) for name in ("input_ids", "labels"))
        expected = logits_of(model, ids, None)
        torch.testing.assert_close(logits, expected[0], atol=1e-5, rtol=0)
        losses = losses + loss_of(expected, labels)
    losses.backward()
    assert float(loss) == pytest.approx(float(losses), rel=1e-6)
    for theirs, parameter in zip(gradients, model.parameters(), strict=True):
        assert parameter.grad is not None
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(theirs, parameter.grad, atol=1e-5 * max(scale, 1.0), rtol=0)


def alone(rows: list[list[dict[str, Any]]], together: Tensor) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """Each conversation with its logits in a packed batch."""
    for number, row in enumerate(rows):
        start = 0
        for conversation in row:
            length = len(conversation["input_ids"])
            yield together[number, start : start + length], conversation
            start += length


def test_only_positions_without_a_mask_keep_them_apart() -> None:
    """Our rows and TRL's rely on this: with a mask, even one that hides nothing, transformers mixes conversations."""
    model = to_transformers(ours("llama"))
    rows = conversations()[:1]
    theirs = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)([dict(item) for item in rows[0]])
    batch = collate(rows, 0, packed=True)
    assert "attention_mask" not in theirs.keys() | batch.keys()
    assert all(torch.equal(theirs[name], batch[name]) for name in ("input_ids", "labels", "position_ids"))
    ids, positions = batch["input_ids"], batch["position_ids"]
    with torch.no_grad():
        apart = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        masked = model(
            input_ids=ids, position_ids=positions, attention_mask=torch.ones_like(ids), use_cache=False
        ).logits
        cached = model(input_ids=ids, position_ids=positions, use_cache=True).logits
    first = LENGTHS[0][0]
    torch.testing.assert_close(apart[:, :first], masked[:, :first], atol=1e-5, rtol=0)
    assert float((apart[:, first:] - masked[:, first:]).abs().max()) > 1e-2
    assert float((apart[:, first:] - cached[:, first:]).abs().max()) > 1e-2


def test_a_model_that_would_mix_them_is_refused_by_name(tmp_path: Path) -> None:
    for architecture in ("qwen3", "gemma", "opt"):
        isolate(load_pretrained(make_foreign(tmp_path / architecture, architecture)))
    for architecture in ("bloom", "falcon", "mamba"):
        model = load_pretrained(make_foreign(tmp_path / architecture, architecture)).train()
        with pytest.raises(ConfigError, match=f"but {architecture} can't keep conversations in one row apart"):
            isolate(model)
        assert model.training
    flexible = load_pretrained(tmp_path / "qwen3", attn_implementation="flex_attention")
    with pytest.raises(ConfigError, match="attention flex_attention would mix them"):
        isolate(flexible)
