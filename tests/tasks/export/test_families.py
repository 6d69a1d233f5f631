"""Graphs of every supported family compute the same as transformers, with and without their cache."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.pretrained import stored_weights
from models.runtimes.kv_cache import past_shape
from models.runtimes.transformers import load_model
from tasks.export.formats import FORMATS
from tasks.export.formats.graphs.models import MASK_BY_KIND, ONE_MASK
from tasks.export.formats.source import Source
from tests.tasks.foreign import make_foreign

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="the extra is not installed: pip install 'gristmill[export]'",
)
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "attention_factor": 1.3,
}
# Two heads of queries share one of keys and values but in GPT-2 and Mistral; 16 is the hidden size by the heads
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"head_dim": 32},
    "mistral": {"head_dim": 32, "sliding_window": 8, "num_key_value_heads": 1},
    "gemma": {"head_dim": 32, "hidden_act": "gelu_pytorch_tanh"},
    "gemma3_text": {"head_dim": 32, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "olmo3": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3": {"head_dim": 32, "rope_parameters": YARN},
    "smollm3": {"no_rope_layers": [1, 0], "pad_token_id": 0},
}
UNTIED = ("llama", "mistral", "qwen2")  # in `make test`; with the others the output layer is the embeddings
IN_ONNX = ("llama", "gemma3_text", "gpt2")  # there; of the others only what the graph is made of, the traced step
CASES = [
    pytest.param(
        family,
        name,
        tied,
        marks=() if tied is (family not in UNTIED) and (name == "pt2" or family in IN_ONNX) else pytest.mark.soak,
    )
    for family in FAMILIES
    for name in ("pt2", "onnx")
    for tied in (True, False)
]


def test_every_family_of_the_table_is_proved() -> None:
    assert set(FAMILIES) == {*ONE_MASK, *MASK_BY_KIND}


@pytest.mark.soak_but("llama-pt2-False", "gpt2-onnx-True")
@pytest.mark.parametrize(("family", "name", "tied"), CASES)
def test_a_graph_computes_what_transformers_does(family: str, name: str, tied: bool, tmp_path: Path) -> None:
    """Padding on the left of one row; all at once, and in three steps, the second of which is of one token."""
    changes = {"initializer_range": 0.15, "tie_word_embeddings": tied, **FAMILIES[family]}
    model = make_foreign(tmp_path / "model", family, **changes)
    ids = np.random.default_rng(0).integers(10, 300, (2, 30))
    mask = np.ones_like(ids)
    mask[1, :7] = 0
    places = np.clip(mask.cumsum(1) - 1, 0, None)
    theirs = load_model(model)
    with torch.no_grad():
        given = {"attention_mask": torch.from_numpy(mask), "position_ids": torch.from_numpy(places)}
        expected = theirs(torch.from_numpy(ids), **given).logits.numpy()
    layers, heads, size = past_shape(theirs.config)
    FORMATS[name].write(Source(model), tmp_path)
    runtime: Any = FORMATS[name].open(tmp_path, 1)
    for steps in ([(0, 30)], [(0, 20), (20, 21), (21, 30)]):
        past = [np.zeros((2, heads, 0, size), np.float32) for _ in range(2 * layers)]
        for start, end in steps:
            new = slice(start, end)
            logits, *past = runtime.step([ids[:, new], mask[:, :end], places[:, new], *past])
            apart = np.abs(logits - expected[:, new])[mask[:, new] == 1].max()
            assert apart < 1e-5 * np.abs(expected).max()
    stored = {key: value for key, value in stored_weights(model) if value.ndim == 2}
    found = dict(FORMATS[name].weights(model, tmp_path))
    assert found.keys() >= (stored.keys() - {"lm_head.weight"} if tied else stored.keys())
    assert all(np.array_equal(found[key], value) for key, value in stored.items() if key in found)
