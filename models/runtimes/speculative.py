"""Speculative decoding: several tokens are guessed, and the model checks them in one pass (Leviathan et al. 2023).

Decoding is greedy, so that the text is the model's own: a guess is accepted if the model would have chosen it. Guesses
come from a draft, a small model with the same vocabulary, or from the text itself: the tokens that followed an earlier
occurrence of the last ones (prompt lookup).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from models.runtimes.llama_cpp import LlamaCppRuntime
from models.runtimes.protocol import LogProbabilities
from models.runtimes.transformers import TransformersRuntime, load_model


@dataclass(frozen=True)
class Guessing:
    """The source of guesses: a draft, or n-grams of `ngram` tokens."""

    tokens: int  # guessed at a time
    draft: Path | None = None  # a model in the runtime's own format
    ngram: int = 0


class Continued(NamedTuple):
    """A greedy continuation of `tokens` tokens, for which `guessed` were guessed, of which `accepted` were right."""

    ids: list[int]
    tokens: int
    guessed: int
    accepted: int
    seconds: float


class Speculative(Protocol):
    """A runtime that takes guesses."""

    def continued(self, prompt: Sequence[int], tokens: int) -> Continued:
        """The greedy continuation of at most `tokens` tokens."""
        ...

    def log_probabilities(self, prompt: Sequence[int]) -> LogProbabilities:
        """(V,) as in the protocol, without guesses."""
        ...

    def close(self) -> None:
        """Free the open model."""
        ...


class SpeculativeTransformers(TransformersRuntime):
    """A model folder whose `generate` is assisted, if `guessing` is set."""

    def __init__(self, folder: Path, device: str = "cpu", guessing: Guessing | None = None) -> None:
        super().__init__(folder, device)
        self._options: dict[str, Any] = {}
        if guessing and guessing.draft:
            self._options = {"assistant_model": always_guessing(load_model(guessing.draft, device), guessing.tokens)}
        elif guessing:
            self._options = {"prompt_lookup_num_tokens": guessing.tokens, "max_matching_ngram_size": guessing.ngram}

    def continued(self, prompt: Sequence[int], tokens: int) -> Continued:
        rows: list[int] = []  # of tokens in each pass

        def count(module: Any, args: Any, kwargs: Any) -> None:
            rows.append(int((args[0] if args else kwargs["input_ids"]).shape[1]))

        ids = self._row(prompt)
        hook = self.model.register_forward_pre_hook(count, with_kwargs=True)
        begun = time.perf_counter()
        try:
            generated = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, **self._options
            )
        finally:
            hook.remove()
        seconds = time.perf_counter() - begun
        new: list[int] = generated[0, len(prompt) :].tolist()
        # A pass reads the model's own last token and the guesses after it, the first one the whole prompt. Each pass
        # yields one token of the model itself, and the guesses that it accepts
        guessed = rows[0] - len(prompt) + sum(rows[1:]) - len(rows[1:])
        return Continued(new, len(new), guessed, len(new) - len(rows), seconds)


def always_guessing(draft: Any, tokens: int) -> Any:
    """A draft of transformers that guesses `tokens` tokens each time, however confident it is."""
    draft.generation_config.num_assistant_tokens = tokens
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    return draft


class SpeculativeLlamaCpp(LlamaCppRuntime):
    """A GGUF file in llama.cpp's server, with a draft or n-grams if `guessing` is set."""

    def __init__(self, path: Path, *, threads: int = 1, guessing: Guessing | None = None) -> None:
        self._guessing = guessing
        super().__init__(path, threads=threads)

    def _configure(self, params: Any) -> None:
        from xllamacpp import common_speculative_type as types

        if (guessing := self._guessing) is None:
            return
        chosen = params.speculative
        if guessing.draft:
            chosen.types = [types.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
            chosen.draft.mparams.path = str(guessing.draft)
            chosen.draft.n_max = guessing.tokens
            chosen.draft.n_gpu_layers = 0
            chosen.draft.cpuparams.n_threads = chosen.draft.cpuparams_batch.n_threads = self.threads
        else:
            chosen.types = [types.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            chosen.ngram_simple.size_n, chosen.ngram_simple.size_m = guessing.ngram, guessing.tokens

    def continued(self, prompt: Sequence[int], tokens: int) -> Continued:
        """As in the protocol. The server doesn't report ids: these are its text's, which may differ, even in number."""
        answer = self._answered(
            self._server.handle_completions(
                {"prompt": list(prompt), "n_predict": tokens, "temperature": 0, "cache_prompt": False}
            )
        )
        timings = answer["timings"]
        seconds = (timings["prompt_ms"] + timings["predicted_ms"]) / 1000
        ids = self._ids(answer["choices"][0]["text"], special=True)
        counts = timings["predicted_n"], timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
        return Continued(ids, *counts, seconds)
