"""A model folder as transformers loads it: only from the folder, only safetensors, and without code of its own."""

from __future__ import annotations

import copy
import json
import math
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.kernels.virtual_tokens import FOLDER, read_virtual_tokens, virtual_tokens

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
# Tensors of a module that hold the matrices of all experts of a layer, and what files call those of one
_FUSED_EXPERTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
ORIGINAL = "original_max_position_embeddings"


def load_pretrained(folder: Path, **options: Any) -> PreTrainedModel:
    """The model of a folder, in float32 unless the `options` of transformers say otherwise, with its virtual tokens, if
    any, before every text.

    Raises OSError for a folder without safetensors: neither pickled weights nor files elsewhere are opened.
    """
    from transformers import AutoModelForCausalLM

    model = _load(AutoModelForCausalLM, folder, options)
    if virtual_tokens(getattr(model, "config", None)):  # with its loading info, it is in a tuple
        read_virtual_tokens(model, folder / FOLDER)
    return model


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


def empty_model(source: Any) -> PreTrainedModel:
    """The model of a folder, or of a config of transformers, without memory for its weights, which are not read."""
    import torch
    from transformers import AutoModelForCausalLM

    config = load_config(source) if isinstance(source, Path) else source
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return model


def allocate_pretrained(folder: Path, auto: Any = None, **settings: Any) -> PreTrainedModel:
    """The model of a folder in float32, on the CPU, with its weights not read: memory for them is reserved but not
    touched. Buffers are as usual, and parameters that the folder lacks are drawn. `auto` is a class of transformers
    (default: the one for causal models), and `settings` are fields of the config."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    check_shards(folder)
    config = load_config(folder)
    config.update({"dtype": torch.float32, **settings})
    model = _without_memory((auto or AutoModelForCausalLM)._model_mapping[type(config)], config)
    names = {name for name, _ in weights_for(model, folder, empty=True)}
    _allocate(model)
    model.tie_weights(recompute_mapping=False)
    held = model.state_dict(keep_vars=True)
    for name in names:
        held[name]._is_hf_initialized = True  # else it would be drawn at random
    model.initialize_weights()
    if buffers := names & dict(model.named_buffers()).keys():
        for name, value in weights_for(model, folder):
            if name in buffers:
                held[name].data.copy_(value)
    if (folder / "generation_config.json").is_file() and model.can_generate():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    model.name_or_path = model.config.name_or_path = str(folder)
    allocated: PreTrainedModel = model.eval()
    return allocated


def _without_memory(kind: Any, config: Any) -> Any:
    import torch
    from transformers.modeling_utils import set_zero3_state

    with torch.device("meta"), set_zero3_state():  # else its parts may be divided while a training uses ZeRO 3
        return kind(config)


def _allocate(model: Any) -> None:
    """Give a module on the meta device memory for its parameters outside of the heap, where other tensors would take
    the place of those that are freed, and buffers in the heap."""
    import torch

    parameters = dict(model.named_parameters(remove_duplicate=False))
    size = sum(one.numel() for one in {id(one): one for one in parameters.values()}.values())
    memory = torch.frombuffer(mmap.mmap(-1, 4 * size, flags=mmap.MAP_PRIVATE), dtype=torch.float32)
    parts, start = {}, 0
    for one in parameters.values():
        if id(one) not in parts:
            parts[id(one)] = memory[start : start + one.numel()].view(one.shape)
            start += one.numel()
    model.load_state_dict({name: parts[id(one)] for name, one in parameters.items()}, strict=False, assign=True)
    for part in model.modules():
        for name, buffer in part.named_buffers(recurse=False):
            part._buffers[name] = torch.empty_like(buffer, device="cpu")


def weights_for(model: Any, folder: Path, *, empty: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a folder under the names that a new model of the same class has for them, in the type of the file.
    They are renamed, and joined, as transformers does it when it loads them whole.

    They are read one at a time, those to be joined together, and tied ones once. With `empty` they are on the meta
    device.
    """
    import torch
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    like = _without_memory(type(model), copy.deepcopy(model.config))
    files, places = _files(folder), like.state_dict()
    transforms = get_model_conversion_mapping(like)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    joining = {pattern: one for one in converters for pattern in one.source_patterns}
    parts: dict[str, list[tuple[str, str]]] = {}

    def read(name: str) -> torch.Tensor:
        if not empty:
            found: torch.Tensor = files[name].get_tensor(name)
            return found
        return torch.empty(files[name].get_slice(name).get_shape(), device="meta")

    def read_all() -> Iterator[tuple[str, torch.Tensor]]:
        tied, found = like.all_tied_weights_keys, {}
        for stored in sorted(files, key=dot_natural_key):
            name, pattern = rename_source_key(stored, renamings, converters, like.base_model_prefix, places)
            if name not in places and stored in places:
                name, pattern = stored, None
            if name in places and pattern is None:
                found[name] = stored
                if name not in tied:
                    yield name, read(stored)
            elif name in places:
                parts.setdefault(name, []).append((stored, str(pattern)))
        for name, other in tied.items():
            if name in found and other not in found:
                yield other, read(found[name])
        for name, sources in parts.items():
            converter = copy.deepcopy(joining[sources[0][1]])
            for stored, pattern in sources:
                converter.add_tensor(name, stored, pattern, read(stored))
            for joined, value in converter.convert(name, model=like, config=like.config).items():
                yield joined, value[0] if isinstance(value, list) else value

    return read_all()  # the class of `model` may change before the first is read


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


def _files(folder: Path) -> dict[str, Any]:
    """The opened file of each tensor of a folder. Tensors are read rather than mapped, as pages of a mapped file would
    stay in memory until the file is closed."""
    from safetensors import safe_open

    opened: list[Any] = [safe_open(file, framework="pt", backend="pread") for file in weight_files(folder)]
    return {tensor: file for file in opened for tensor in file.keys()}  # noqa: SIM118


class StoredWeights(Mapping[str, npt.NDArray[np.float32]]):
    """The tensors of a folder as its files have them, in float32, by name. Each is read on access."""

    def __init__(self, folder: Path) -> None:
        self._files = _files(folder)

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
    """The most tokens that a model sees at a time, without virtual ones. Raises ValueError for a config that doesn't
    say."""
    context = getattr(config, "max_position_embeddings", None)
    if not isinstance(context, int):
        raise ValueError("it lacks max_position_embeddings")
    return context - virtual_tokens(config)
