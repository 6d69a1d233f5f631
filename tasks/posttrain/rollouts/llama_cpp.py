"""Many sampled answers at a time, in llama.cpp as a library.

llama.cpp maps the file that it opens into memory. The file here is in memory too, so that weights written into it are
those of the open model: nothing is loaded again. A prompt is read once for all its answers, an answer that has ended
takes no more time, and each answer is drawn by random numbers of its own.

Shapes: A answers that go on, V vocabulary.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.pretrained import by_file_names, load_config
from models.runtimes.llama_library import LlamaLibrary
from models.runtimes.protocol import AllLogProbabilities, RuntimeFault
from storage.errors import ConfigError
from tasks.export.formats.gguf.architecture import architecture_of
from tasks.export.formats.gguf.file import write_gguf
from tasks.export.formats.gguf.tensors import Names
from tasks.posttrain.rollouts.engine import TOGETHER, Sample

PROMPT = 512  # tokens of a prompt to read at a time
# The first fields of llama_context_params: where they are set here, and the defaults that show them to be there
CONTEXT, BATCH, TOKENS, SEQUENCES, FLASH, KEYS, VALUES = 0, 1, 2, 3, 13, 26, 27
DEFAULTS = {CONTEXT: 512, BATCH: 2048, TOKENS: 512, SEQUENCES: 1, 10: -1, 11: -1, 12: -1, FLASH: -1, KEYS: 1, VALUES: 1}


class LlamaCppEngine:
    """A copy in float32 of the model in a folder. Raises ConfigError for a model that llama.cpp computes differently,
    RuntimeFault for another build of llama.cpp than the one that this was written for."""

    def __init__(self, folder: Path, ends: Sequence[int], temperature: float, threads: int) -> None:
        from gguf import GGUFReader

        self.ends, self.temperature = set(ends), temperature
        config = load_config(folder)
        self._file = os.memfd_create("rollouts.gguf")
        path = Path(f"/proc/{os.getpid()}/fd/{self._file}")
        try:
            self._names = Names(config, architecture_of(config))
            write_gguf(folder, path, "f32")
        except ConfigError as error:  # its remedy is that of an export
            raise ConfigError(error.message, "Choose another rollout.engine.") from error
        self._weights = {tensor.name: tensor.data for tensor in GGUFReader(path, "r+").tensors}
        self._llama = _Sequences(path, threads=threads)

    def update(self, model: Any) -> None:
        """Take the weights of a model of transformers, with those of its adapter added."""
        weights = by_file_names(weights_of(model))
        arrays = {name: value.detach().float().cpu().numpy() for name, value in weights.items()}
        for _, name, values in self._names.converted(arrays):
            self._weights[name][:] = values

    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], most: int) -> list[Sample]:
        """An answer of at most `most` tokens to each prompt, drawn by the seed beside it."""
        samples: list[Sample] = []
        for start in range(0, len(prompts), TOGETHER):
            part = slice(start, start + TOGETHER)
            samples += self._sample(prompts[part], seeds[part], most)
        return samples

    def _sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], most: int) -> list[Sample]:
        found: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
        draws = [torch.rand(most, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        logits_AV, going = self._llama.begin(prompts, most), list(range(len(prompts)))
        while True:
            drawn = torch.stack([draws[each][len(found[each][0])] for each in going])
            ids, log_probabilities = draw(torch.from_numpy(logits_AV) / self.temperature, drawn)
            for each, id, value in zip(going, ids, log_probabilities, strict=True):
                found[each][0].append(id)
                found[each][1].append(value)
            going = [each for each in going if found[each][0][-1] not in self.ends and len(found[each][0]) < most]
            if not going:
                return [Sample(*each) for each in found]
            places = [len(prompts[each]) + len(found[each][0]) - 1 for each in going]
            logits_AV = self._llama.read(
                (found[each][0][-1], place, each, True) for each, place in zip(going, places, strict=True)
            )

    def close(self) -> None:
        """Free the copy."""
        self._llama.close()
        self._weights.clear()
        os.close(self._file)


def draw(logits_AV: Tensor, drawn_A: Tensor) -> tuple[list[int], list[float]]:
    """The token of each row at which cumulated probability exceeds a number from 0 to 1, and its log-probability."""
    log_probabilities_AV = logits_AV.float() - torch.logsumexp(logits_AV.double(), -1, keepdim=True).float()
    cumulated_AV = log_probabilities_AV.exp().double().cumsum(-1)
    sought_A1 = (drawn_A.double() * cumulated_AV[:, -1])[:, None]
    ids_A1 = torch.searchsorted(cumulated_AV, sought_A1, right=True).clamp(max=logits_AV.shape[1] - 1)
    return ids_A1[:, 0].tolist(), log_probabilities_AV.gather(1, ids_A1)[:, 0].tolist()


class _Sequences(LlamaLibrary):
    """A GGUF file of which several texts are read at a time."""

    _count = 0

    def begin(self, prompts: Sequence[Sequence[int]], most: int) -> AllLogProbabilities:
        """Forget all texts and read these prompts, equal neighbours once. Returns (A, V) logits after each."""
        self._count = len(prompts)
        self._begin(TOGETHER * (-(-(max(map(len, prompts)) + most) // 32) * 32))
        rows, place = [], 0
        for prompt, same in groupby(map(list, prompts)):
            for start in range(0, len(prompt), PROMPT):
                part = range(start, min(start + PROMPT, len(prompt)))
                logits = self.read((prompt[at], at, place, at == len(prompt) - 1) for at in part)
            copies = len(list(same))
            for other in range(place + 1, place + copies):
                self._library.llama_memory_seq_cp(self._library.llama_get_memory(self._context), place, other, -1, -1)
            rows += [logits[0].copy()] * copies
            place += copies
        return np.stack(rows)

    def read(self, tokens: Iterable[tuple[int, int, int, bool]]) -> AllLogProbabilities:
        """(A, V) logits after those of these tokens that ask for them: id, place, number of the text, whether asked."""
        given = list(tokens)
        batch = self._library.llama_batch_init(len(given), 0, 1)
        batch.n_tokens = len(given)
        for at, (id, place, text, asked) in enumerate(given):
            batch.token[at], batch.pos[at], batch.logits[at] = id, place, asked
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, text
        status = self._library.llama_decode(self._context, batch)
        self._library.llama_batch_free(batch)
        if status != 0:
            raise RuntimeFault(f"llama.cpp can't read {len(given):,} tokens: llama_decode returned {status}")
        rows = max(1, sum(asked for *_, asked in given))
        return np.ctypeslib.as_array(self._library.llama_get_logits(self._context), (rows, self.vocab_size))

    def _settings(self, tokens: int) -> Any:
        """Keys and values in float32 without flash attention, which rounds them."""
        params = super()._settings(tokens)
        fields = ctypes.cast(ctypes.pointer(params), ctypes.POINTER(ctypes.c_int32))
        known = self._library.llama_context_default_params()
        defaults = ctypes.cast(ctypes.pointer(known), ctypes.POINTER(ctypes.c_int32))
        if {place: defaults[place] for place in DEFAULTS} != DEFAULTS:
            raise RuntimeFault("xllamacpp has a newer interface: install the version of constraints.txt")
        fields[SEQUENCES], fields[TOKENS] = TOGETHER, PROMPT
        fields[FLASH] = fields[KEYS] = fields[VALUES] = 0
        return params


def weights_of(model: Any) -> dict[str, Tensor]:
    """The weights of a model by their names in transformers, with those of an adapter added to what they adapt, and
    those that are trained whole beside it in place of the originals."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    added = {name: layer.get_delta_weight("default") for name, layer in _adapted(base)}
    weights = {}
    for name, value in base.state_dict().items():
        if ".lora_" not in name and ".original_module." not in name:
            name = name.replace(".base_layer.", ".").replace(".modules_to_save.default.", ".")
            delta = added.get(name.removesuffix(".weight"))
            weights[name] = value if delta is None else value + delta
    return weights


def _adapted(model: Any) -> Iterator[tuple[str, Any]]:
    return ((name, layer) for name, layer in model.named_modules() if hasattr(layer, "get_delta_weight"))
