"""A model folder as transformers loads it: only from the folder, only safetensors, and without code of its own."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
# Tensors of a module that hold the matrices of all experts of a layer, and what files call those of one
_FUSED_EXPERTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
ORIGINAL = "original_max_position_embeddings"


def load_pretrained(folder: Path, **options: Any) -> PreTrainedModel:
    """The model of a folder, in float32 unless the `options` of transformers say otherwise.

    Raises OSError for a folder without safetensors: neither pickled weights nor files elsewhere are opened.
    """
    from transformers import AutoModelForCausalLM

    return _load(AutoModelForCausalLM, folder, options)


def load_classifier(folder: Path, **options: Any) -> PreTrainedModel:
    """The sequence classifier of a folder, loaded like `load_pretrained`."""
    from transformers import AutoModelForSequenceClassification

    return _load(AutoModelForSequenceClassification, folder, options)


def load_encoder(folder: Path, **options: Any) -> PreTrainedModel:
    """The model of a folder without its head, loaded like `load_pretrained`."""
    from transformers import AutoModel

    return _load(AutoModel, folder, options)


def _load(auto: Any, folder: Path, options: Mapping[str, Any]) -> PreTrainedModel:
    import torch

    check_shards(folder)
    options = {"dtype": torch.float32, **options}
    model: PreTrainedModel = auto.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, **options
    )
    return model


def empty_model(folder: Path) -> PreTrainedModel:
    """The model of a folder without memory for its weights: only its config is read."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(load_config(folder), trust_remote_code=False)
    return model


def open_pretrained(folder: Path, device: torch.device | str, **options: Any) -> PreTrainedModel:
    """The model of a folder on a device, for inference. A quantized one is placed while it is loaded."""
    if getattr(load_config(folder), "quantization_config", None) is not None:
        return load_pretrained(folder, device_map=str(device), **options).eval()
    model: Any = load_pretrained(folder, **options)
    placed: PreTrainedModel = model.to(device).eval()
    return placed


def check_shards(folder: Path) -> None:
    """Check the index of a folder's weights. Raises OSError if it names a file outside the folder, which transformers
    would read although the folder's digest doesn't cover it. Also raises OSError if the index names other files beside
    a whole model: transformers would read one, and other programs the other."""
    index = folder / INDEX
    if not index.is_file():
        return
    weights = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    names = sorted({str(name) for name in weights.values()})
    if (folder / WEIGHTS).is_file() and names != [WEIGHTS]:
        raise OSError(f"it has two sets of weights, {WEIGHTS} and those of {INDEX}")
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise OSError(f"{INDEX} names {name}, which is not a file in the folder")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in order. Raises OSError as `check_shards` does."""
    check_shards(folder)
    index = folder / INDEX
    listed = index.is_file()
    names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if listed else {WEIGHTS}
    return [folder / name for name in sorted(names)]


class StoredTensor(NamedTuple):
    """A tensor as the header of a file of weights describes it."""

    kind: str  # safetensors' name of the dtype: F32, BF16, I8, …
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a folder by name, from the headers of its files only. Raises OSError and SafetensorError."""
    from safetensors import safe_open

    tensors: dict[str, StoredTensor] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as opened:
            parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            tensors |= {name: StoredTensor(part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}
    return tensors


class StoredWeights(Mapping[str, npt.NDArray[np.float32]]):
    """The tensors of a folder as its files have them, in float32, by name. Each is read on access."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        opened: list[Any] = [safe_open(file, framework="pt") for file in weight_files(folder)]
        self._files = {tensor: file for file in opened for tensor in file.keys()}  # noqa: SIM118

    def __getitem__(self, name: str) -> npt.NDArray[np.float32]:
        tensor: npt.NDArray[np.float32] = self._files[name].get_tensor(name).float().numpy()
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def __len__(self) -> int:
        return len(self._files)


def stored_weights(folder: Path) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """The tensors of a folder as its files have them, by name, in float32, with one in memory at a time."""
    yield from StoredWeights(folder).items()


def by_file_names(inside: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a module of transformers under the names of its files, which have the matrices of experts one by
    one. Those are views."""
    tensors: dict[str, torch.Tensor] = {}
    for name, value in inside.items():
        before, experts, last = name.partition(".experts.")
        if value.dim() != 3 or last not in _FUSED_EXPERTS:
            tensors[name] = value
            continue
        for number, matrix in enumerate(value):
            for part, rows in zip(_FUSED_EXPERTS[last], matrix.chunk(len(_FUSED_EXPERTS[last])), strict=True):
                tensors[f"{before}{experts}{number}.{part}.weight"] = rows
    return tensors


def load_config(folder: Path) -> Any:
    """The config of a model folder, as transformers reads it."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def extend(config: Any, context: int, rope_parameters: Mapping[str, Any] | None) -> Any:
    """The config with a longer context, and the rotary positions for it. Unchanged if the context is its own."""
    if rope_parameters is None or context == context_of(config):
        return config
    config.max_position_embeddings = context
    config.rope_parameters = copy.deepcopy(dict(rope_parameters))
    if hasattr(config, ORIGINAL):  # Phi-3 has it beside its rope_parameters, and transformers prefers that
        setattr(config, ORIGINAL, rope_parameters.get(ORIGINAL, context))
    return config


def head_size(config: Any) -> int:
    """Channels of an attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def context_of(config: Any) -> int:
    """The most tokens that a model sees at a time. Raises ValueError for a config that doesn't say."""
    context = getattr(config, "max_position_embeddings", None)
    if not isinstance(context, int):
        raise ValueError("it lacks max_position_embeddings")
    return context
