"""A model folder as transformers loads it: from the folder alone, safetensors only, without code of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_pretrained(folder: Path, **options: Any) -> PreTrainedModel:
    """The model of a folder, in float32 unless the `options` of transformers say otherwise.

    Raises OSError for a folder without safetensors: weights that are a pickle are not opened.
    """
    import torch
    from transformers import AutoModelForCausalLM

    options = {"dtype": torch.float32, **options}
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, **options
    )
    return model


def load_config(folder: Path) -> Any:
    """The config of a model folder, as transformers reads it."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def context_of(config: Any) -> int:
    """The most tokens that a model sees at a time. Raises ValueError for a config that doesn't say."""
    found = getattr(config, "max_position_embeddings", None)
    if not isinstance(found, int):
        raise ValueError("it has no max_position_embeddings")
    return found
