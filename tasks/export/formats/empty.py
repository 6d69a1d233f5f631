"""A model as its config alone says it is: what a format can know of it before there are weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def empty_model(folder: Path) -> Any:
    """The model of a folder without memory for its weights: its config alone is read."""
    import torch
    from transformers import AutoModelForCausalLM

    from models.pretrained import load_config

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(load_config(folder), trust_remote_code=False)
