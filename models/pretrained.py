"""A model folder as transformers loads it: from the folder alone, safetensors only, without code of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_pretrained(folder: Path, **options: Any) -> PreTrainedModel:
    """The model of a folder, in float32 unless the `options` of transformers say otherwise.

    Raises OSError for a folder without safetensors: weights that are a pickle are not opened.
    """
    from transformers import AutoModelForCausalLM

    options = {"dtype": torch.float32, **options}
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, **options
    )
    return model
