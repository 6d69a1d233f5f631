"""The memory of a step of post-training: of a deep model from shallow ones."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from transformers import AutoConfig

from models.activations import numbers
from models.memory.tuned import TunedShape, of_whole
from models.presets import count_parameters
from tasks.training.adapters.config import LoraConfig, Part
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
    [
        ("qwen3", {}, LoraConfig(rank=2, whole=("embedding", "head"))),
        ("gemma3_text", {"layer_types": KINDS, "sliding_window": 32}, None),
    ],
)
def test_a_deep_model_takes_what_shallow_ones_say(
    family: str, layers: dict[str, Any], adapter: LoraConfig | None
) -> None:
    shape, traced = shape_of(family, layers, adapter)
    assert of_whole(shape, traced) == traced(shape._module())


@pytest.mark.parametrize("tied", [True, False])
def test_the_copies_of_parts_that_are_trained_whole_are_learned(tied: bool) -> None:
    config = AutoConfig.for_model("qwen3", vocab_size=600, num_hidden_layers=2, tie_word_embeddings=tied, **SIZES)

    def learned(*whole: Part) -> tuple[int, int]:
        shape = TunedShape.of(config, partial(inject, "sft", LoraConfig(rank=2, whole=whole)))
        return shape.learned, count_parameters(shape)

    ends = 600 * 64 * (1 if tied else 2)
    assert learned("embedding", "head") == tuple(number + ends for number in learned())


def test_layers_that_differ_are_all_traced() -> None:
    shape, traced = shape_of("qwen3", {}, LoraConfig(rank=2, targets=["layers.[0-3].*_proj"]))
    assert of_whole(shape, traced) is None


def shape_of(family: str, layers: dict[str, Any], adapter: LoraConfig | None) -> tuple[TunedShape, Any]:
    config = AutoConfig.for_model(family, vocab_size=600, num_hidden_layers=12, **SIZES, **layers)
    adapt = None if adapter is None else partial(inject, "sft", adapter)
    shape = replace(TunedShape.of(config, adapt, rows=2, measured=8), context=96)
    return shape, partial(shape._traced, FORM, 2, "full")
