"""Converts tensors of transformers to llama.cpp's, one at a time, and back.

Four conventions differ. LLaMA's rotary pairs are neighbours in llama.cpp and halves in transformers, so the rows of
queries and keys are permuted. GPT-2's matrices are transposed. Gemma's norms are stored minus one in transformers. The
experts of a layer are one tensor of three dimensions in llama.cpp, and a matrix each in files of transformers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.kernels.rope_scaling import scaling_of
from models.pretrained import StoredWeights, by_file_names, empty_model, head_size
from storage.errors import ConfigError
from storage.shards.arrays import Float32
from tasks.export.formats.gguf.architecture import Architecture, layers_of, rope

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
_EXPERT = re.compile(r"\.experts\.\d+\.")
_BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # in old files: computed, not learned


@dataclass(frozen=True)
class Names:
    """llama.cpp's names for the tensors of a checkpoint, and the conversion of each."""

    config: Any
    known: Architecture

    def tensors(self, model: Path) -> Iterator[tuple[str, str, Float32]]:
        """(name in the checkpoint, llama.cpp's name, values) of each tensor of a file. Raises ConfigError for a tensor
        that llama.cpp has no name for."""
        yield from self.converted(StoredWeights(model))

    def converted(self, stored: Mapping[str, Float32]) -> Iterator[tuple[str, str, Float32]]:
        """The same of weights by their names in files."""
        for name, each in self._parts(stored):
            values = np.stack([stored[one] for one in each]) if len(each) > 1 else stored[name]
            theirs = self.name_of(name)
            yield name, theirs, self.to_llama(theirs, values)
        frequencies = self.frequencies()
        if frequencies is not None:
            yield "", "rope_freqs.weight", frequencies

    def shapes(self, model: Path) -> dict[str, tuple[int, ...]]:
        """llama.cpp's names and shapes of a file's tensors, except frequencies, from the config in a model folder.
        Raises ConfigError for a tensor that llama.cpp has no name for."""
        shapes, inside = {}, by_file_names(empty_model(model).state_dict())
        for name, each in self._parts(inside):
            theirs, shape = self.name_of(name), tuple(inside[each[0]].shape)
            shape = (len(each), *shape) if len(each) > 1 else shape
            shapes[theirs] = shape[::-1] if self._transposed(theirs, shape) else shape
        return shapes

    def _parts(self, names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        """Each tensor of llama.cpp: its name in the checkpoint, and those of the tensors that it is made of."""
        for name in names:
            if name.endswith(_BUFFERS) or (name == "lm_head.weight" and self.config.tie_word_embeddings):
                continue
            whole = _EXPERT.sub(".experts.", name)
            each = self.names_of_experts(whole)
            if name == each[0]:
                yield whole, each

    def names_of_experts(self, name: str) -> list[str]:
        """The names that the matrices of a layer's experts have in files, or the name itself if it is of none."""
        if ".experts." not in name:
            return [name]
        return [name.replace(".experts.", f".experts.{expert}.") for expert in range(self.config.num_experts)]

    def name_of(self, name: str) -> str:
        """llama.cpp's name for a tensor of the checkpoint. Raises ConfigError if it has none."""
        theirs: str | None = self._mapping.get_name(name, try_suffixes=(".weight", ".bias"))
        if theirs is None:
            raise ConfigError(f"llama.cpp doesn't know the tensor {name}.", "Leave gguf out of export.formats.")
        return theirs

    def to_llama(self, name: str, values: Float32) -> Float32:
        """A tensor of transformers in the form of llama.cpp's file."""
        if self._permuted(name):
            return _pair_neighbours(values, self._heads(name))
        if self._transposed(name, values.shape):
            return np.ascontiguousarray(values.T)
        return values + 1 if self._without_one(name) else values

    def rows_to_llama(self, name: str, values: Float32) -> Float32:
        """Values for each output of a matrix (outputs × any) in llama.cpp's order of rows."""
        return _pair_neighbours(values, self._heads(name)) if self._permuted(name) else values

    def to_checkpoint(self, name: str, values: Float32) -> Float32:
        """The inverse of `to_llama`."""
        if self._permuted(name):
            return _part_neighbours(values, self._heads(name))
        if self._transposed(name, values.shape):
            return np.ascontiguousarray(values.T)
        return values - 1 if self._without_one(name) else values

    def frequencies(self) -> Float32 | None:
        """(head / 2,) the divisors of LLaMA 3's rotary frequencies, or None for other positions."""
        settings = rope(self.config)
        scaling = scaling_of(settings)
        if scaling is None or scaling.rope_type != "llama3":
            return None
        return np.array(scaling.divisors(settings["rope_theta"], head_size(self.config)), np.float32)

    @functools.cached_property
    def _mapping(self) -> Any:
        from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

        (architecture,) = (number for number, name in MODEL_ARCH_NAMES.items() if name == self.known.name)
        return get_tensor_name_map(architecture, layers_of(self.config))

    def _permuted(self, name: str) -> bool:
        return self.known.neighbours and name.endswith(("attn_q.weight", "attn_k.weight"))

    def _transposed(self, name: str, shape: tuple[int, ...]) -> bool:
        return self.known.transposed and name.startswith("blk.") and len(shape) == 2

    def _without_one(self, name: str) -> bool:
        return self.known.norms_without_one and name.endswith("norm.weight")

    def _heads(self, name: str) -> int:
        heads: int = self.config.num_attention_heads
        return (getattr(self.config, "num_key_value_heads", None) or heads) if "attn_k" in name else heads


def _pair_neighbours(values: Float32, heads: int) -> Float32:
    """Rows of each head from (first half, second half) to pairs of neighbours."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _part_neighbours(values: Float32, heads: int) -> Float32:
    """The inverse of `_pair_neighbours`."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
