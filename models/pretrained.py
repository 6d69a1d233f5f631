"""A model folder as transformers loads it: from the folder alone, safetensors only, without code of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

INDEX = "model.safetensors.index.json"


def load_pretrained(folder: Path, **options: Any) -> PreTrainedModel:
    """The model of a folder, in float32 unless the `options` of transformers say otherwise.

    Raises OSError for a folder without safetensors: weights that are a pickle are not opened. Nor is a file elsewhere.
    """
    import torch
    from transformers import AutoModelForCausalLM

    check_shards(folder)
    options = {"dtype": torch.float32, **options}
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, **options
    )
    return model


def open_pretrained(folder: Path, device: torch.device | str, **options: Any) -> PreTrainedModel:
    """The model of a folder on a device, to be asked. One that is quantized is placed as it is loaded."""
    if getattr(load_config(folder), "quantization_config", None) is not None:
        return load_pretrained(folder, device_map=str(device), **options).eval()
    model: Any = load_pretrained(folder, **options)
    placed: PreTrainedModel = model.to(device).eval()
    return placed


def check_shards(folder: Path) -> None:
    """Raises OSError for an index of weights that names a file which does not lie in the folder: transformers would
    read it wherever it is, though it is no part of what the folder is known by."""
    index = folder / INDEX
    if not index.is_file():
        return
    weights = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    for name in sorted({str(name) for name in weights.values()}):
        if Path(name).name != name or not (folder / name).is_file():
            raise OSError(f"{INDEX} names {name}, which is no file in the folder")


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
