"""Scaled rotary positions: our decoder has transformers' logits, beyond the original context too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from models.convert import from_transformers, to_transformers
from models.kernels.attention import rotary
from models.kernels.rope_scaling import RopeScaling, scaling_of

CONTEXT, TRAINED = 512, 64
WINDOW, WHOLE = "sliding_attention", "full_attention"
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 8.0},
    "linear, an older name": {"type": "linear", "rope_type": "linear", "factor": 8.0},
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": TRAINED},
    "yarn, as it is set": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": TRAINED,
        "attention_factor": 1.5,
        "beta_fast": 12.0,
        "beta_slow": 2.0,
    },
    "yarn, one dimension between": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 6,
        "beta_fast": 1.0,
        "beta_slow": 1.0,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "original_max_position_embeddings": TRAINED,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 300},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 24},
    "gemma3_text": {"head_dim": 16, "num_key_value_heads": 2, "sliding_window": 40, "layer_types": [WINDOW, WHOLE]},
    "olmo3": {"sliding_window": 40, "layer_types": [WINDOW, WHOLE], "tie_word_embeddings": False},
}


def scaled(family: str, scaling: dict[str, Any]) -> Any:
    """A model of transformers with these rotary positions, weights drawn at random (seed 1), attention sharpened."""
    torch.manual_seed(1)
    positions = {"rope_theta": 5_000.0, **scaling}
    if "layer_types" in SHAPES[family]:  # only the layers that see the whole context are scaled
        positions = {WHOLE: positions, WINDOW: {"rope_type": "default", "rope_theta": 5_000.0}}
    config = AutoConfig.for_model(
        family,
        vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,  # so that positions matter
        rope_parameters=positions,
        **SHAPES[family],
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize("named", SCALINGS)
def test_logits_are_those_of_transformers_beyond_the_original_context(named: str, family: str) -> None:
    theirs = scaled(family, SCALINGS[named])
    ours = from_transformers(theirs)
    settings = theirs.config.rope_parameters
    assert ours.shape.rope_scaling == scaling_of(settings.get(WHOLE, settings))
    ids = torch.randint(0, 300, (1, CONTEXT), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected, found = theirs(ids).logits, ours(ids)
        again = to_transformers(ours)(ids).logits
        unscaled = from_transformers(scaled(family, {"rope_type": "default"}))(ids)
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(again, expected, atol=1e-5, rtol=1e-5)
    assert (expected - unscaled)[:, TRAINED:].abs().mean() > 0.05, "it would matter"


@pytest.mark.parametrize("named", SCALINGS)
def test_frequencies_are_those_of_transformers(named: str) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = scaled("llama", SCALINGS[named]).config
    expected, attention = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config)
    scaling = scaling_of(config.rope_parameters)
    assert scaling is not None
    assert scaling.attention == pytest.approx(attention)
    cos, sin = rotary(2, 16, 5_000.0, torch.zeros(()), scaling)
    torch.testing.assert_close(torch.atan2(sin[1, 0], cos[1, 0]), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(torch.hypot(sin, cos), torch.full_like(sin, attention))


def test_a_scaling_is_kept_apart_from_what_it_leaves_out() -> None:
    assert scaling_of({"rope_type": "default", "rope_theta": 1e4}) is None
    assert scaling_of({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}) == RopeScaling("linear", 2.0)
    assert RopeScaling("linear", 2.0).parameters == {"rope_type": "linear", "factor": 2.0}
