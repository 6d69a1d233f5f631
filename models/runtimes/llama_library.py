"""llama.cpp as a library: the next token's distribution at every position of a text, and its quantized types.

The binding `xllamacpp` offers only llama.cpp's server, which reports one position a request. The library in it also
exports llama.cpp's C interface, which is called here. Only the first fields of one of its structures are set. A build
with another layout is recognised by their defaults, and refused.

Shapes: T tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from models.runtimes.protocol import AllLogProbabilities, RuntimeFault

READ = 512  # tokens to read at a time, as each takes memory for intermediate results
PIECE = 512  # bytes of the text of a token
ROOM = 128  # 64-bit words: structures passed by value may have more room than they need
DEFAULTS = (512, 2048, 512)  # n_ctx, n_batch, n_ubatch: the first fields of llama_context_params


class NextToken(NamedTuple):
    """The log-probability of a token and of the most likely one, in nats, and whether they are the same token."""

    log_probability: float
    best: float
    is_best: bool


class _Params(ctypes.Structure):
    """llama_model_params or llama_context_params, whatever they hold."""

    _fields_ = [("words", ctypes.c_uint64 * ROOM)]


class _Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_SILENCE = _Log(lambda level, text, data: None)  # kept: llama.cpp holds its address


@functools.cache
def library() -> ctypes.CDLL:
    """llama.cpp with the types of the functions that are called here. Raises RuntimeFault if it lacks one."""
    spec = find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    (path,) = Path(spec.origin).parent.glob("xllamacpp*.so")
    llama = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    types: dict[str, tuple[object, list[object]]] = {
        "llama_model_default_params": (_Params, []),
        "llama_context_default_params": (_Params, []),
        "llama_model_load_from_file": (pointer, [ctypes.c_char_p, _Params]),
        "llama_init_from_model": (pointer, [pointer, _Params]),
        "llama_adapter_lora_init": (pointer, [pointer, ctypes.c_char_p]),
        "llama_set_adapters_lora": (
            number,
            [pointer, ctypes.POINTER(pointer), ctypes.c_size_t, ctypes.POINTER(ctypes.c_float)],
        ),
        "llama_n_ctx": (ctypes.c_uint32, [pointer]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_vocab_n_tokens": (number, [pointer]),
        "llama_vocab_is_eog": (ctypes.c_bool, [pointer, number]),
        "llama_set_n_threads": (None, [pointer, number, number]),
        "llama_batch_init": (_Batch, [number, number, number]),
        "llama_batch_free": (None, [_Batch]),
        "llama_decode": (number, [pointer, _Batch]),
        "llama_get_logits": (ctypes.POINTER(ctypes.c_float), [pointer]),
        "llama_get_memory": (pointer, [pointer]),
        "llama_memory_clear": (None, [pointer, ctypes.c_bool]),
        "llama_memory_seq_rm": (ctypes.c_bool, [pointer, number, number, number]),
        "llama_memory_seq_cp": (None, [pointer, number, number, number, number]),
        "llama_token_to_piece": (number, [pointer, number, ctypes.c_char_p, number, number, ctypes.c_bool]),
        "llama_free": (None, [pointer]),
        "llama_model_free": (None, [pointer]),
        "llama_log_set": (None, [_Log, pointer]),
        "ggml_quantize_chunk": (
            ctypes.c_size_t,
            [number, pointer, pointer, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, pointer],
        ),
        "ggml_quantize_requires_imatrix": (ctypes.c_bool, [number]),
    }
    for name, (result, arguments) in types.items():
        try:
            function = getattr(llama, name)
        except AttributeError as error:
            raise RuntimeFault(f"xllamacpp's library lacks {name}: install the version of constraints.txt") from error
        function.restype, function.argtypes = result, arguments
    llama.llama_log_set(_SILENCE, None)
    return llama


class LlamaLibrary:
    """An open GGUF file, for whole texts, optionally with the GGUF file of an adapter. Raises RuntimeFault for a file
    that llama.cpp can't load."""

    def __init__(self, path: Path, *, threads: int = 1, adapter: Path | None = None) -> None:
        self._library, self._threads = library(), threads
        self._model = self._library.llama_model_load_from_file(
            str(path).encode(), self._library.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeFault(f"llama.cpp can't load {path}")
        # The adapter is freed with the model
        self._adapter = self._library.llama_adapter_lora_init(self._model, str(adapter).encode()) if adapter else None
        if adapter and not self._adapter:
            self._library.llama_model_free(self._model)
            raise RuntimeFault(f"llama.cpp can't load {adapter}")
        self._vocabulary = self._library.llama_model_get_vocab(self._model)
        self.vocab_size = int(self._library.llama_vocab_n_tokens(self._vocabulary))
        self._context, self._room = None, 0
        self._held: list[int] = []  # the ids whose keys and values the context has

    def all_log_probabilities(self, ids: Sequence[int]) -> AllLogProbabilities:
        """(T, V) natural logarithms: row t is of the token after ids[: t + 1]."""
        from scipy.special import log_softmax

        self._begin(len(ids))
        log_probabilities: AllLogProbabilities = log_softmax(self._read(ids, 0, every=True), axis=-1).astype(np.float32)
        return log_probabilities

    def greedy(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """The ids of the greedy continuation, at most `tokens`, up to and including an end token."""
        self._begin(len(prompt) + tokens)
        continuation: list[int] = []
        logits_V = self._read(prompt, 0, every=False)[-1]
        while len(continuation) < tokens:
            continuation.append(int(logits_V.argmax()))
            if self._library.llama_vocab_is_eog(self._vocabulary, continuation[-1]) or len(continuation) == tokens:
                break
            logits_V = self._read(continuation[-1:], len(prompt) + len(continuation) - 1, every=False)[-1]
        return continuation

    def targets(self, ids: Sequence[int], start: int) -> list[NextToken]:
        """The likelihood of each token from `start` on, after those before it. The beginning that a text shares with
        the previous one is not computed again."""
        from scipy.special import logsumexp

        before = list(ids[:-1])
        kept = self._keep(before, start - 1)
        tokens: list[NextToken] = []
        for place in range(kept, len(before), READ):
            part = before[place : place + READ]
            rows_TV = self._read(part, place, every=True)[max(start - 1 - place, 0) :]
            total_T, best_T = logsumexp(rows_TV, axis=-1), rows_TV.argmax(-1)
            for row_V, total, best in zip(rows_TV, total_T, best_T, strict=True):
                token = ids[start + len(tokens)]
                tokens.append(NextToken(float(row_V[token] - total), float(row_V[best] - total), best == token))
        self._held = before
        return tokens

    def text_of(self, ids: Sequence[int]) -> bytes:
        """The text of tokens, special ones by their names, as bytes, since it may end within a character."""
        pieces = []
        buffer = ctypes.create_string_buffer(PIECE)
        for token in ids:
            size = self._library.llama_token_to_piece(self._vocabulary, token, buffer, PIECE, 0, True)
            if size < 0:
                buffer = ctypes.create_string_buffer(-size)
                size = self._library.llama_token_to_piece(self._vocabulary, token, buffer, -size, 0, True)
            pieces.append(buffer.raw[:size])
        return b"".join(pieces)

    def _keep(self, ids: Sequence[int], most: int) -> int:
        """Make room for these ids. Returns how many of the first ones, at most `most`, the context still holds."""
        common = next((n for n, (a, b) in enumerate(zip(ids, self._held, strict=False)) if a != b), len(self._held))
        kept = min(common, len(ids), most)
        if self._room < len(ids) or kept <= 0:
            self._begin(len(ids))
            return 0
        memory = self._library.llama_get_memory(self._context)
        if not self._library.llama_memory_seq_rm(memory, 0, kept, -1):
            self._begin(len(ids))
            return 0
        return kept

    def _begin(self, tokens: int) -> None:
        if self._room < tokens:
            self._make_room(tokens)
        self._held = []
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)

    def _read(self, ids: Sequence[int], position: int, *, every: bool) -> AllLogProbabilities:
        """(T, V) logits of these tokens, which are at `position` and after, or only of the last one unless `every`."""
        batch = self._library.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for place, token in enumerate(ids):
            batch.token[place], batch.pos[place] = token, position + place
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.logits[place] = every or place == len(ids) - 1
        status = self._library.llama_decode(self._context, batch)
        self._library.llama_batch_free(batch)
        if status != 0:
            raise RuntimeFault(f"llama.cpp can't read {len(ids):,} tokens: llama_decode returned {status}")
        rows = len(ids) if every else 1
        return np.ctypeslib.as_array(self._library.llama_get_logits(self._context), (rows, self.vocab_size))

    def close(self) -> None:
        """Free the context and the model."""
        if self._context:
            self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def _settings(self, tokens: int) -> _Params:
        """The settings of a context for `tokens` tokens, all in one batch, computed READ at a time."""
        params: _Params = self._library.llama_context_default_params()
        fields = ctypes.cast(ctypes.pointer(params), ctypes.POINTER(ctypes.c_uint32))
        if tuple(fields[:3]) != DEFAULTS:
            raise RuntimeFault("xllamacpp has a newer interface: install the version of constraints.txt")
        fields[0] = fields[1] = tokens
        fields[2] = min(tokens, READ)
        return params

    def _make_room(self, tokens: int) -> None:
        params = self._settings(tokens)
        if self._context:
            self._library.llama_free(self._context)
        self._context = self._library.llama_init_from_model(self._model, params)
        if not self._context or self._library.llama_n_ctx(self._context) < tokens:
            raise RuntimeFault(f"llama.cpp can't allocate room for {tokens:,} tokens")
        if self._adapter:
            adapters, scales = (ctypes.c_void_p * 1)(self._adapter), (ctypes.c_float * 1)(1.0)
            if self._library.llama_set_adapters_lora(self._context, adapters, 1, scales) != 0:
                raise RuntimeFault("llama.cpp can't apply the adapter")
        self._library.llama_set_n_threads(self._context, self._threads, self._threads)
        self._room = tokens
