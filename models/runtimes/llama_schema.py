"""Whether llama.cpp can follow JSON schemas, as a process: `python -m models.runtimes.llama_schema`, a schema a line.

llama.cpp leaves an answer free where it can't follow a schema, takes seconds to read some, and dies of others. So each
is read here first, by the same library (llguidance) in less stack and memory. The answer is a line of JSON: null, or
what is wrong. The process may die of a schema too.
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
import threading
import time

from models.runtimes.llama_library import library
from models.runtimes.protocol import RuntimeFault

MEMORY, STACK = 1 << 30, 1 << 20  # bytes. A thread of llama.cpp has 8 MB of stack
SECONDS = 0.3  # of CPU time: the engine, which answers nobody meanwhile, needs as long
LONGEST = 200  # characters of a reason
ROOM = 64  # 64-bit words: structures may have more fields than are set here
EOS = 256  # of a vocabulary of bytes


class _Tokenizer(ctypes.Structure):
    """LlgTokenizerInit."""

    _fields_ = [
        ("vocab_size", ctypes.c_uint32),
        ("tok_eos", ctypes.c_uint32),
        ("token_lens", ctypes.c_void_p),
        ("token_bytes", ctypes.c_void_p),
        ("tokenizer_json", ctypes.c_char_p),
        ("tokenize_assumes_string", ctypes.c_bool),
        ("tokenize_fn", ctypes.c_void_p),
        ("use_approximate_greedy_tokenize_fn", ctypes.c_bool),
        ("room", ctypes.c_uint64 * ROOM),
    ]


class Checker:
    """Reads schemas as llama.cpp does."""

    def __init__(self) -> None:
        self._library, self._reason = library(), ctypes.create_string_buffer(4 * LONGEST)
        tokens = [*(bytes([byte]) for byte in range(EOS)), b"<eos>"]
        self._lengths = (ctypes.c_uint32 * len(tokens))(*map(len, tokens))
        self._bytes = ctypes.create_string_buffer(b"".join(tokens))
        lengths, data = ctypes.addressof(self._lengths), ctypes.addressof(self._bytes)
        init = _Tokenizer(len(tokens), EOS, lengths, data, use_approximate_greedy_tokenize_fn=True)
        create = self._library.llg_new_tokenizer
        create.restype = ctypes.c_void_p
        tokenizer = create(ctypes.byref(init), self._reason, ctypes.c_size_t(len(self._reason)))
        if not tokenizer:
            raise RuntimeFault(f"llguidance makes no tokenizer: {self._reason.value.decode(errors='replace')}")
        self._init = (ctypes.c_uint64 * ROOM)()
        self._library.llg_constraint_init_set_defaults(self._init, ctypes.c_void_p(tokenizer))
        self._init[0] = tokenizer

    def check(self, schema: str) -> str | None:
        """What is wrong with a schema, None if llama.cpp can follow it."""
        began = time.thread_time()
        size = ctypes.c_size_t(len(self._reason))
        wrong = self._library.llg_validate_grammar(self._init, b"json_schema", schema.encode(), self._reason, size)
        if wrong < 0:
            reason = " ".join(self._reason.value.decode(errors="replace").split())
            return reason if len(reason) <= LONGEST else f"{reason[:LONGEST]}…"
        return "it takes too long to read" if time.thread_time() - began > SECONDS else None


def main() -> None:
    """Answer each line of stdin."""
    checker = Checker()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    for line in sys.stdin:
        print(json.dumps(checker.check(line)), flush=True)


if __name__ == "__main__":
    threading.stack_size(STACK)
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
