"""The dtype of released weights, and the one that a user's GPU computes in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from tasks.export.card.provenance import Provenance

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
STORED = ("dtype", "torch_dtype")  # of a config.json, as new and old versions of transformers name it
IN_BFLOAT16 = ("bfloat16", "float8")  # with float8 everything but some matrix products is bfloat16


def weights_dtype(asked: Dtype, provenance: Provenance | None, model: Path) -> str:
    """Resolves `auto`: bfloat16 if the model's last training was in it, float32 otherwise. An existing model without
    further training keeps the dtype of its config."""
    if asked != "auto":
        return asked
    if provenance is None or not provenance.precision:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        stored = next((config[name] for name in STORED if config.get(name)), "float32")
        return "bfloat16" if stored == "bfloat16" else "float32"
    return "bfloat16" if provenance.precision in IN_BFLOAT16 else "float32"


def compute_dtype(asked: Dtype) -> str:
    """The dtype that a user's GPU multiplies 4-bit weights in: bfloat16, which every GPU since Ampere has, unless the
    profile says otherwise."""
    return "bfloat16" if asked == "auto" else asked
