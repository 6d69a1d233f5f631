"""Formats that round only linear layers, or trace a graph, refuse a mixture of experts by name before it is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import ConfigError
from tasks.export.formats import FORMATS
from tests.tasks.export.test_gguf import MIXTURE
from tests.tasks.foreign import make_foreign

REFUSED = {
    "int8": r"int8 rounds linear layers, and model\.layers\.0\.mlp\.experts\.gate_up_proj holds the matrices of all",
    "int4": "int4 rounds linear layers",
    "torchao-int8": "torchao-int8 rounds linear layers",
    "w4a16": "of this qwen3_moe model is a Qwen3MoeExperts",
    "gptq": "is a Qwen3MoeExperts",
    "awq": "is a Qwen3MoeExperts",
    "w8a8": "is a Qwen3MoeExperts",
    "onnx": "qwen3_moe isn't among",
    "pt2": "qwen3_moe isn't among",
}


def test_what_leaves_experts_out_is_refused_by_name(tmp_path: Path) -> None:
    model = make_foreign(tmp_path / "model", "qwen3_moe", **MIXTURE)
    (model / "model.safetensors").unlink()  # the config says enough
    for name, why in REFUSED.items():
        with pytest.raises(ConfigError, match=why):
            FORMATS[name].check(model)
    FORMATS["safetensors"].check(model)
