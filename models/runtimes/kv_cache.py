"""A graph of one decoder step with a KV cache: from new ids and the keys and values of earlier tokens to logits and the
keys and values of all tokens.

onnx.py and torch_export.py run the step. Names and order of its tensors are those of optimum.

Shapes: T new tokens, S with those before, H heads of keys and values, D their size, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.pretrained import head_size, load_config
from models.runtimes.protocol import AllLogProbabilities, LogProbabilities, RuntimeFault
from models.runtimes.token_runtime import TokenizedRuntime
from models.tokenizer import NEEDED_FILES, load_tokenizer

Array = npt.NDArray[Any]
GRAPH, PROGRAM = "model.onnx", "model.pt2"  # the graph in onnxruntime and in torch
FILES = ("config.json", "generation_config.json", *NEEDED_FILES)  # beside the graph


def past_shape(config: Any) -> tuple[int, int, int]:
    """The number of layers, and the heads and head size of their keys and values."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return config.num_hidden_layers, heads, head_size(config)


def tensor_names(layers: int) -> tuple[list[str], list[str]]:
    """The names of a step's inputs and outputs, in their order."""
    cached = [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]
    inputs = ["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{name}" for name in cached)]
    return inputs, ["logits", *(f"present.{name}" for name in cached)]


class CachedRuntime(TokenizedRuntime):
    """A graph in a folder with config and tokenizer. Raises RuntimeFault if one of them is missing."""

    def __init__(self, folder: Path) -> None:
        from transformers import GenerationConfig

        missing = [name for name in FILES if not (folder / name).is_file()]
        if missing:
            raise RuntimeFault(f"{folder} lacks {', '.join(missing)}")
        try:
            self.config = load_config(folder)
            self.tokenizer = load_tokenizer(folder)
            ends = GenerationConfig.from_pretrained(str(folder), local_files_only=True).eos_token_id
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RuntimeFault(f"transformers can't read config or tokenizer of {folder}: {error}") from error
        self.ends = {ends} if isinstance(ends, int) else set(ends or ())

    @abstractmethod
    def step(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of one step for its inputs, each in the order of their names. Raises RuntimeFault."""

    def log_probabilities(self, prompt: Sequence[int]) -> LogProbabilities:
        from scipy.special import log_softmax

        logits_TV, _ = self._next(prompt, self._empty_cache())
        log_probabilities: LogProbabilities = log_softmax(logits_TV[-1].astype(np.float64))
        return log_probabilities

    def all_log_probabilities(self, ids: Sequence[int]) -> AllLogProbabilities:
        from scipy.special import log_softmax

        logits_TV, _ = self._next(ids, self._empty_cache())
        log_probabilities: AllLogProbabilities = log_softmax(logits_TV, axis=-1)
        return log_probabilities

    def greedy(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """As in the protocol, and no longer than the context."""
        new, past, continuation = list(prompt), self._empty_cache(), list[int]()
        for _ in range(min(tokens, self.context - len(prompt))):
            logits_TV, past = self._next(new, past)
            new = [int(logits_TV[-1].argmax())]
            continuation += new
            if new[0] in self.ends:
                break
        return continuation

    def _empty_cache(self) -> list[Array]:
        """Keys and values of zero tokens: (1, H, 0, D) each."""
        layers, heads, size = past_shape(self.config)
        return [np.zeros((1, heads, 0, size), np.float32) for _ in range(2 * layers)]

    def _next(self, ids: Sequence[int], past: Sequence[Array]) -> tuple[AllLogProbabilities, list[Array]]:
        """Logits (T, V) of new ids after those of `past`, and keys and values of all: (1, H, S, D) each."""
        before = past[0].shape[2]
        whole = before + len(ids)
        if not ids or whole > self.context:
            raise RuntimeFault(f"The text has {whole:,} tokens, and the context is {self.context:,}")
        new = np.array([list(ids)], np.int64)
        positions = np.arange(before, whole, dtype=np.int64)[None]
        logits, *present = self.step([new, np.ones((1, whole), np.int64), positions, *past])
        return logits[0], present
