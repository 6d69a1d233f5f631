"""One dial gives a whole model, every number with its rule; known models have their known sizes."""

from __future__ import annotations

import pytest
import torch

from models.config import ModelConfig
from models.presets import count_parameters, derive, explain
from models.transformer import Transformer

# Published parameter counts: GPT-2 small (OpenAI's release), LLaMA 7B and Mistral 7B (their checkpoints)
KNOWN = [
    (ModelConfig(family="gpt2", depth=12, context=1024), 50_257, 124_439_808),
    (
        ModelConfig(family="llama", depth=32, width=4096, heads=32, feed_forward=11_008, context=2048),
        32_000,
        6_738_415_616,
    ),
    (
        ModelConfig(family="mistral", depth=32, width=4096, heads=32, kv_heads=8, feed_forward=14_336, context=8192),
        32_000,
        7_241_732_096,
    ),
]


@pytest.mark.parametrize(("config", "vocab_size", "parameters"), KNOWN)
def test_known_models_have_their_known_sizes(config: ModelConfig, vocab_size: int, parameters: int) -> None:
    shape = derive(config, vocab_size)
    assert count_parameters(shape) == parameters
    with torch.device("meta"):
        assert Transformer(shape).num_parameters() == parameters


def test_one_dial_derives_the_rest_and_says_by_which_rule() -> None:
    shape = derive(ModelConfig(depth=12, context=1024), 32_768)
    assert (shape.width, shape.heads, shape.kv_heads, shape.feed_forward) == (768, 12, 12, 2048)
    told = {name: (value, rule) for name, value, rule in explain(shape)}
    assert told["width"][0] == 768
    assert "64 × depth" in told["width"][1]
    assert all(rule for _, rule in told.values())
    overridden = derive(ModelConfig(depth=12, context=1024, width=512), 32_768)
    assert {name: rule for name, _, rule in explain(overridden)}["width"] == "set in the profile"
