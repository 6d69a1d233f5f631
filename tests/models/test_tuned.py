"""The memory of a step of post-training: what TRL's head takes, traced without memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from models.activations import Activations, Numbers
from models.memory.traced import filled, one_text_in_a_row, traced_step, without_memory
from models.memory.tuned import TILE, TunedShape
from models.presets import Recompute
from tasks.training.adapters.config import LoraConfig
from tasks.training.adapters.lora import inject
from tests.models.test_traced import SMALL

FLOAT32 = Numbers(4, 4, cuda=False)
LORA = partial(inject, "sft", LoraConfig(rank=4))


def shape_of(family: str, **settings: Any) -> TunedShape:
    """With a vocabulary of a whole tile, as TRL allocates one of that size for a smaller vocabulary too."""
    config = AutoConfig.for_model(family, **{**SMALL, "vocab_size": TILE[1], "tie_word_embeddings": True})
    return TunedShape.of(config, **settings)


def by_trl(shape: TunedShape, pairs: int, recompute: Recompute = "none") -> Activations:
    from trl.trainer.utils import add_fused_lm_head

    with without_memory() as made, one_text_in_a_row():
        model = filled(shape._module())
        add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
        if recompute == "full":
            model.gradient_checkpointing_enable()
            model.enable_input_require_grads()
        ids_BT = torch.zeros(shape.rows * pairs, shape.context, dtype=torch.int64)
        inputs = {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT), "labels": ids_BT}
        return traced_step(made, model, lambda: model(**inputs, use_cache=False, fused_lm_head=True).log_probs.sum())


@pytest.mark.parametrize(
    ("family", "settings", "pairs", "recompute"),
    [
        ("llama", {}, 2, "none"),
        ("llama", {}, 2, "full"),
        ("llama", {"adapt": LORA}, 2, "none"),
        ("llama", {"rows": 2}, 33, "none"),  # more than a tile of tokens
        ("gemma2", {}, 2, "none"),
    ],
    ids=["llama", "recomputed", "adapter", "pairs", "capped"],
)
def test_a_step_takes_what_it_takes_under_the_head_of_trl(
    family: str, settings: dict[str, Any], pairs: int, recompute: Recompute
) -> None:
    shape = shape_of(family, **settings)
    ours, theirs = shape.step(FLOAT32, pairs, recompute), by_trl(shape, pairs, recompute)
    assert ours.blocks == pytest.approx(theirs.blocks, rel=0.01)
    assert ours.loss == pytest.approx(theirs.loss, rel=0.01)
    assert ours.backward == pytest.approx(theirs.backward, rel=0.01)


def test_validation_takes_a_batch_of_its_own() -> None:
    alone, measured = (shape_of("llama", measured=rows).step(FLOAT32, 1, "full") for rows in (0, 8))
    assert alone.blocks == measured.blocks
    assert measured.loss > 4 * alone.loss


def test_only_what_is_trained_counts_as_learned() -> None:
    whole, adapted = shape_of("llama"), shape_of("llama", adapt=LORA)
    layer = {"q": (64, 64), "k": (64, 32), "v": (64, 32), "o": (64, 64), "gate": (64, 160), "up": (64, 160)}
    sides = [*layer.values(), (160, 64)]
    assert adapted.learned == 3 * sum(4 * (one + other) for one, other in sides)
    assert whole.learned == sum(parameter.numel() for parameter in whole._module().parameters())
