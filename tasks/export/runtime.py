"""A GGUF file in llama.cpp, in this process, by the prebuilt binding `xllamacpp`.

Used to prove an export before it is published, and by `gristmill chat`. llama.cpp's server always listens somewhere:
here on a Unix socket in a folder that only this user may enter, never on a port.
"""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from storage.errors import ParityError

QUIET = -1  # llama.cpp's verbosity: no lines of its own
SECONDS = 60.0  # an answer over the socket takes at most


class GgufModel:
    """An open file. Greedy throughout: what it says is a function of the prompt."""

    def __init__(self, path: Path, *, threads: int = 1) -> None:
        from xllamacpp import CommonParams, Server

        params = CommonParams()
        params.model.path = str(path)
        params.n_parallel = 1
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        params.n_gpu_layers = 0
        params.warmup = False
        params.use_jinja = True
        params.fit_params = False
        params.verbosity = QUIET
        self.path = path
        self._folder = TemporaryDirectory(prefix="gristmill-")
        self._socket = f"{self._folder.name}/llama.sock"
        params.hostnames = [self._socket]
        try:
            self._server = Server(params)
        except RuntimeError as error:
            raise ParityError(f"llama.cpp can't load {path}: {error}", "Export it again.") from error

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text by llama.cpp's own tokenizer; special tokens in it stay text, nothing is added."""
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(SECONDS)
            connected.connect(self._socket)
            connection = http.client.HTTPConnection("localhost", timeout=SECONDS)
            connection.sock = connected
            request = {"content": text, "add_special": False, "parse_special": False}
            connection.request("POST", "/tokenize", json.dumps(request), {"Content-Type": "application/json"})
            ids: list[int] = self._answered(json.loads(connection.getresponse().read()))["tokens"]
        return ids

    def greedy(self, prompt: str | list[int], tokens: int) -> list[int]:
        """The ids of the greedy continuation, up to `tokens`, ended early by an end token."""
        return [int(token["id"]) for token in self._complete(prompt, n_predict=tokens, n_probs=1)]

    def log_probabilities(self, prompt: str | list[int], vocab_size: int) -> dict[int, float]:
        """Natural log-probability of every id as the next token, before any sampling."""
        (token,) = self._complete(prompt, n_predict=1, n_probs=vocab_size, ignore_eos=False)
        return {int(entry["id"]): float(entry["logprob"]) for entry in token["top_logprobs"]}

    def chat_log_probabilities(self, messages: list[dict[str, str]], vocab_size: int) -> dict[int, float]:
        """The same for the first token of an answer, by the template in the file."""
        answer = self._chat(messages, max_tokens=1, logprobs=True, top_logprobs=vocab_size)
        (token,) = answer["logprobs"]["content"]
        return {int(entry["id"]): float(entry["logprob"]) for entry in token["top_logprobs"]}

    def chat(self, messages: list[dict[str, str]], tokens: int = 128) -> str:
        """The assistant's answer."""
        content: str = self._chat(messages, max_tokens=tokens)["message"]["content"]
        return content.strip()

    def _chat(self, messages: list[dict[str, str]], **request: Any) -> dict[str, Any]:
        request = {"messages": messages, "temperature": 0, "cache_prompt": False, **request}
        choice: dict[str, Any] = self._answered(self._server.handle_chat_completions(request))["choices"][0]
        return choice

    def _complete(self, prompt: str | list[int], **request: Any) -> list[dict[str, Any]]:
        request = {"prompt": prompt, "temperature": 0, "cache_prompt": False, **request}
        choice = self._answered(self._server.handle_completions(request))["choices"][0]
        content: list[dict[str, Any]] = choice["logprobs"]["content"]
        return content

    def _answered(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "error" in answer:
            raise ParityError(f"llama.cpp refused {self.path.name}: {answer['error']}.", "This is a defect; report it.")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        del self._server
        self._folder.cleanup()


def load_gguf(path: Path, *, threads: int = 1) -> GgufModel:
    """Open a GGUF file."""
    return GgufModel(path, threads=threads)
