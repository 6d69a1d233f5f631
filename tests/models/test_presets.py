"""One dial gives a whole model, every number with its rule; known models have their known sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.config import ModelConfig
from models.presets import ShapeError, count_parameters, derive, explain
from models.transformer import Transformer

# Published parameter counts: GPT-2 small (OpenAI's release), and of their checkpoints LLaMA 7B, Mistral 7B, Qwen3 0.6B,
# Gemma 3 1B and OLMo 3 7B
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
    (
        ModelConfig(
            family="gemma3", depth=26, width=1152, heads=4, kv_heads=1, head_size=256, feed_forward=6912, context=32_768
        ),
        262_144,
        999_885_952,
    ),
    (
        ModelConfig(family="olmo3", depth=32, width=4096, heads=32, feed_forward=11_008, context=65_536),
        100_278,
        7_298_011_136,
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
    with pytest.raises(ShapeError, match="head_size applies only to qwen3, qwen3_moe and gemma3"):
        derive(ModelConfig(depth=12, context=1024, head_size=64), 32_768)
    with pytest.raises(ShapeError, match="even head size, not 63: change head_size"):
        derive(ModelConfig(family="qwen3", depth=12, context=1024, head_size=63), 32_768)


def test_layers_of_a_pattern_see_a_window_or_everything() -> None:
    gemma = derive(ModelConfig(family="gemma3", depth=8, context=2048), 32_768)
    assert (gemma.sliding_window, gemma.global_every, gemma.windowed) == (512, 6, 7)
    assert [gemma.sight(layer) for layer in (4, 5, 6)] == [(1e4, None, 512), (1e6, None, None), (1e4, None, 512)]
    assert gemma.seen() == 7 * 512 + 2048
    assert gemma.seen(document=1000) == 7 * 512 + 1000
    olmo = derive(ModelConfig(family="olmo3", depth=8, context=2048), 32_768)
    assert [olmo.sight(layer) for layer in (2, 3)] == [(5e5, None, 1024), (5e5, None, None)]
    assert derive(ModelConfig(family="olmo3", depth=2, context=2048), 32_768).global_every == 2
    named = {name: rule for name, _, rule in explain(gemma)}
    assert named["sliding_window"] == "context / 4, at most the 1,024 of Gemma 3 4B"
    assert named["global_every"] == "6 as Gemma 3, at most the depth"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"family": "llama", "global_every": 2}, "global_every applies only to gemma3 and olmo3: remove it"),
        ({"family": "olmo3", "local_rope_theta": 1e4}, "local_rope_theta applies only to gemma3: set rope_theta"),
        ({"family": "qwen3", "sliding_window": 8}, "sliding_window applies only to mistral, gemma3 and olmo3"),
        ({"family": "olmo3", "head_size": 32}, "head_size applies only to qwen3, qwen3_moe and gemma3: set heads"),
        ({"family": "gemma3", "tie_embeddings": False}, "tie_embeddings is False, which runtimes of gemma3 lack"),
        ({"family": "olmo3", "tie_embeddings": True}, "tie_embeddings is True, which runtimes of olmo3 lack"),
        ({"family": "gemma3", "global_every": 5}, "global_every is 5 with 4 layers"),
        ({"family": "gemma3", "heads": 3}, "width 256 is not a multiple of 3 heads"),
    ],
)
def test_what_a_family_lacks_is_refused_by_name(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ShapeError, match=why):
        derive(ModelConfig.model_validate({"depth": 4, "context": 64, **changes}), 512)


def test_one_dial_derives_the_rest_and_says_by_which_rule() -> None:
    shape = derive(ModelConfig(depth=12, context=1024), 32_768)
    assert (shape.width, shape.heads, shape.kv_heads, shape.feed_forward) == (768, 12, 12, 2048)
    told = {name: (value, rule) for name, value, rule in explain(shape)}
    assert told["width"][0] == 768
    assert "64 × depth" in told["width"][1]
    assert all(rule for _, rule in told.values())
    overridden = derive(ModelConfig(depth=12, context=1024, width=512), 32_768)
    assert {name: rule for name, _, rule in explain(overridden)}["width"] == "set in the profile"
