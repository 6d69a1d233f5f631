"""A release's settings for transformers 5 are there for transformers 4 too, which would use its own defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from models.pretrained import load_config, load_pretrained
from models.tokenizer import portable_settings
from tasks.export.formats.config import portable_config
from tasks.export.formats.safetensors import Safetensors
from tasks.export.formats.source import Source
from tests.tasks.foreign import make_foreign

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("rope", "kind", "told"),
    [
        ({"rope_type": "default", "rope_theta": 333.0}, "llama", {"rope_theta": 333.0}),
        (LLAMA3, "llama", {"rope_theta": 5e4, "rope_scaling": {**LLAMA3}}),
        (
            {"rope_type": "default", "rope_theta": 333.0, "partial_rotary_factor": 0.5},
            "phi",
            {"rope_theta": 333.0, "partial_rotary_factor": 0.5},
        ),
        (
            {"rope_type": "default", "rope_theta": 333.0, "partial_rotary_factor": 0.5},
            "gpt_neox",
            {"rotary_emb_base": 333.0, "rotary_pct": 0.5},
        ),
        (
            {
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "gemma3_text",
            {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
        ),
        (None, "gpt2", {}),
    ],
)
def test_a_config_tells_how_positions_rotate_in_both_words(
    rope: dict[str, Any] | None, kind: str, told: dict[str, Any]
) -> None:
    given = {"model_type": kind, "rope_parameters": rope, "torch_dtype": "float16", "_name_or_path": "/home/me"}
    scaling = {name: value for name, value in told.get("rope_scaling", {}).items() if name != "rope_theta"}
    expected = {**told, **({"rope_scaling": scaling} if scaling else {})}
    assert portable_config(given) == {"model_type": kind, "rope_parameters": rope, **expected}


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 333.0}}),
        ("llama", {"rope_parameters": LLAMA3}),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
    ],
)
def test_transformers_5_computes_the_same_with_both(architecture: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = make_foreign(tmp_path / "model", architecture, **changes)
    release = tmp_path / "release"
    release.mkdir()
    Safetensors().write(Source(model), release)
    found, expected = Safetensors().settings(model, release)
    assert {name: found[name] for name in expected if not name.startswith("_")} == {
        name: value for name, value in expected.items() if not name.startswith("_")
    }
    assert load_config(release).rope_parameters == load_config(model).rope_parameters
    assert found.get("num_experts") == changes.get("num_experts")
    ids = torch.arange(24)[None]
    with torch.no_grad():
        assert torch.equal(load_pretrained(release)(ids).logits, load_pretrained(model)(ids).logits)
    settings = json.loads((release / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_a_tokenizer_names_no_class_and_no_key_that_transformers_4_has_not() -> None:
    saved = {"backend": "tokenizers", "tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<x>"]}
    assert portable_settings(saved) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": ["<x>"],
    }
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "extra_special_tokens": {"image_token": "<i>"}}
    assert portable_settings(named) == named
