"""Weights of 8 and 4 bits of models with transposed layers, or with widths that blocks don't divide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.export.config import ExportConfig
from tasks.export.formats import FORMATS
from tasks.export.formats.source import Source
from tasks.export.proof.judge import require
from tasks.export.proof.reference import Reference
from tasks.export.run import prove
from tests.tasks.foreign import make_foreign

ODD: dict[str, dict[str, Any]] = {
    "gpt2": {"initializer_range": 0.15},
    "gpt2, width 48": {"hidden_size": 48, "initializer_range": 0.15},
    "llama, width 96": {"hidden_size": 96, "initializer_range": 0.15},
    "llama, 40 rows": {"intermediate_size": 200, "head_dim": 20, "initializer_range": 0.15},
}


@pytest.mark.soak_but("gpt2-int8", "llama, 40 rows-int4")
@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("named", ODD)
def test_layers_of_any_shape_are_proved(named: str, name: str, tmp_path: Path) -> None:
    """GPT-2's matrices are inputs × outputs; bitsandbytes' CPU code takes rows of whole blocks for granted."""
    model = make_foreign(tmp_path / "model", named.split(",")[0], **ODD[named])
    ids = np.random.default_rng(0).integers(3, 300, (4, 60))
    windows = tuple(tuple(row) for row in ids.tolist())
    config = ExportConfig(prompts=["The fox"], greedy_tokens=4)
    reference = Reference(model, windows, config, tmp_path / "scratch")
    FORMATS[name].write(Source(model), tmp_path)
    weights, parity, _ = prove(reference, name, tmp_path, 1)
    require(name, parity, weights, FORMATS[name].tolerance)
    assert weights.row.error < (0.02 if name == "int8" else 0.15)


def test_what_bitsandbytes_computes_wrongly_on_cpus_is_said(tmp_path: Path) -> None:
    wide = make_foreign(tmp_path / "wide", "llama", hidden_size=96)
    assert FORMATS["int4"].remark(wide) == (
        "for GPUs: bitsandbytes computes it wrongly or not at all on CPUs, as the width 96 isn't a multiple of 64"
    )
    rows = make_foreign(tmp_path / "rows", "llama", head_dim=20, num_key_value_heads=1, num_attention_heads=16)
    assert "on CPUs with AVX512-BF16, as 20 rows aren't a multiple of 32" in str(FORMATS["int4"].remark(rows))
    assert FORMATS["int8"].remark(wide) is None
    assert FORMATS["int4"].remark(make_foreign(tmp_path / "usual", "llama")) is None
