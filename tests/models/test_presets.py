"""One dial gives a whole model, every number with its rule; known models have their known sizes."""

from __future__ import annotations

import pytest
import torch

from models.config import ModelConfig
from models.presets import ShapeError, count_parameters, derive, explain
from models.transformer import Transformer

# Published parameter counts: GPT-2 small (OpenAI's release), LLaMA 7B Mistral 7B and Qwen3 0.6B (their checkpoints)
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
    (
        ModelConfig(family="qwen3", depth=28, width=1024, head_size=128, feed_forward=3072, context=40_960),
        151_936,
        596_049_920,
    ),
]


@pytest.mark.parametrize(("config", "vocab_size", "parameters"), KNOWN)
def test_known_models_have_their_known_sizes(config: ModelConfig, vocab_size: int, parameters: int) -> None:
    shape = derive(config, vocab_size)
    assert count_parameters(shape) == parameters
    with torch.device("meta"):
        assert Transformer(shape).num_parameters() == parameters


def test_the_head_size_of_qwen3_is_its_own() -> None:
    shape = derive(ModelConfig(family="qwen3", depth=12, context=1024, heads=10), 32_768)
    assert (shape.width, shape.heads, shape.kv_heads, shape.head_dim) == (768, 10, 5, 64)
    assert ("head_size", 64, "32 below width 256, 64 below 2048, else 128") in explain(shape)
    with pytest.raises(ShapeError, match="head_size applies only to qwen3"):
        derive(ModelConfig(depth=12, context=1024, head_size=64), 32_768)
    with pytest.raises(ShapeError, match="even head size, not 63: change head_size"):
        derive(ModelConfig(family="qwen3", depth=12, context=1024, head_size=63), 32_768)


def test_one_dial_derives_the_rest_and_says_by_which_rule() -> None:
    shape = derive(ModelConfig(depth=12, context=1024), 32_768)
    assert (shape.width, shape.heads, shape.kv_heads, shape.feed_forward) == (768, 12, 12, 2048)
    told = {name: (value, rule) for name, value, rule in explain(shape)}
    assert told["width"][0] == 768
    assert "64 × depth" in told["width"][1]
    assert all(rule for _, rule in told.values())
    overridden = derive(ModelConfig(depth=12, context=1024, width=512), 32_768)
    assert {name: rule for name, _, rule in explain(overridden)}["width"] == "set in the profile"
