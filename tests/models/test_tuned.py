"""The memory of a step of post-training: of a deep model from shallow ones."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from transformers import AutoConfig

from models.activations import numbers
from models.memory.tuned import TunedShape, of_whole
from tasks.training.adapters.config import LoraConfig
from tasks.training.adapters.lora import inject

SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
}
KINDS = (["sliding_attention"] * 2 + ["full_attention"]) * 4
FORM = numbers("float32", autocast=False, cuda=False)


@pytest.mark.parametrize(
    ("family", "layers", "adapter"),
    [("qwen3", {}, LoraConfig(rank=2)), ("gemma3_text", {"layer_types": KINDS, "sliding_window": 32}, None)],
)
def test_a_deep_model_takes_what_shallow_ones_say(
    family: str, layers: dict[str, Any], adapter: LoraConfig | None
) -> None:
    shape, traced = shape_of(family, layers, adapter)
    assert of_whole(shape, traced) == traced(shape._module())


def test_layers_that_differ_are_all_traced() -> None:
    shape, traced = shape_of("qwen3", {}, LoraConfig(rank=2, targets=["layers.[0-3].*_proj"]))
    assert of_whole(shape, traced) is None


def shape_of(family: str, layers: dict[str, Any], adapter: LoraConfig | None) -> tuple[TunedShape, Any]:
    config = AutoConfig.for_model(family, vocab_size=600, num_hidden_layers=12, **SIZES, **layers)
    adapt = None if adapter is None else partial(inject, "sft", adapter)
    shape = replace(TunedShape.of(config, adapt, rows=2, measured=8), context=96)
    return shape, partial(shape._traced, FORM, 2, "full")
