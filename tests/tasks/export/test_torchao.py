"""A checkpoint of torchao: safetensors that transformers loads, near the original, and refused for GPT-2."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from models.runtimes.transformers import load_model
from storage.digests import file_digest
from storage.errors import ConfigError
from tasks.export.formats import FORMATS
from tasks.export.formats.source import Source
from tests.tasks.export.test_export import inputs, run
from tests.tasks.tiny_model import make_model

pytestmark = pytest.mark.skipif(
    find_spec("torchao") is None, reason="torchao is not installed: pip install 'gristmill[export]'"
)


@pytest.mark.soak
def test_a_checkpoint_of_torchao_is_proved_and_is_no_pickle(tmp_path: Path) -> None:
    given = inputs(tmp_path, kv_heads=2)
    release = run(tmp_path, given, formats=["safetensors", "torchao-int8"]).path
    proof = json.loads((release / "parity.json").read_text())["formats"]
    assert 0 < proof["torchao-int8"]["mean_divergence"] < 1e-4
    assert proof["torchao-int8"]["bytes"] < 0.6 * proof["safetensors"]["bytes"]
    assert {file.suffix for file in FORMATS["torchao-int8"].files(release)} <= {".safetensors", ".json", ".jinja"}
    with safe_open(release / "torchao-int8" / "model.safetensors", "pt") as file:
        assert str(file.get_tensor("model.layers.0.self_attn.q_proj._weight_qdata").dtype) == "torch.int8"
    expected = {
        name: value.numpy() for name, value in load_model(given[0].path).state_dict().items() if value.ndim == 2
    }
    found = dict(FORMATS["torchao-int8"].weights(given[0].path, release))
    assert set(found) == set(expected)
    for name, value in found.items():
        step = np.abs(expected[name]).max(axis=1, keepdims=True) / 127
        assert (np.abs(value - expected[name]) <= 0.51 * step).all()


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    """The library writes a file's metadata in random order: of five unsorted files, two would hardly be equal."""
    model = make_model(tmp_path / "model")
    for number in range(5):
        FORMATS["torchao-int8"].write(Source(model), tmp_path / str(number))
    files = [tmp_path / str(number) / "torchao-int8" / "model.safetensors" for number in range(5)]
    assert len({file_digest(file) for file in files}) == 1
    with safe_open(files[0], "pt") as file:
        assert len(file.metadata()) > 10


def test_a_model_without_linear_layers_is_refused(tmp_path: Path) -> None:
    model = inputs(tmp_path, family="gpt2")[0]
    with pytest.raises(ConfigError, match="builds GPT-2 from transposed ones"):
        FORMATS["torchao-int8"].check(model.path)
