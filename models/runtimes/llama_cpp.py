"""A GGUF file in llama.cpp, in this process, by the prebuilt binding `xllamacpp`.

llama.cpp's server always listens: here on a Unix socket in a folder that only this user may enter, never on a port.

Shapes: T tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

import functools
import http.client
import json
import math
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np

from models.conversation.control import BREAK, Controls, controls_of, kept_places
from models.conversation.turns import REFUSED, TemplateFaultError
from models.runtimes.llama_library import LlamaLibrary, NextToken
from models.runtimes.protocol import AllLogProbabilities, LogProbabilities, Message, ModelRuntime, RuntimeFault

NO_OUTPUT = -1  # llama.cpp's verbosity
LONGEST_SOCKET = 100  # bytes of its path. Systems allow 103 to 107, beyond which its server fails to start
ANSWER_SECONDS = 60.0  # the longest wait for an answer over the socket
FORCED = 1e3  # a bias that forces a token. Reported probabilities are those without it


class LlamaCppRuntime(ModelRuntime):
    """An open GGUF file, optionally with the GGUF file of an adapter, and with a chat template in place of its own.
    Raises RuntimeFault for a file that llama.cpp can't load."""

    def __init__(
        self, path: Path, *, threads: int = 1, adapter: Path | None = None, template: Path | None = None
    ) -> None:
        from xllamacpp import CommonAdapterLoraInfo, CommonParams, Server

        params = CommonParams()
        params.model.path = str(path)
        if adapter is not None:
            params.lora_adapters = [CommonAdapterLoraInfo(str(adapter), 1.0)]
        if template is not None:
            params.chat_template = template.read_text(encoding="utf-8")
        params.n_parallel = 1
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        params.n_gpu_layers = 0
        params.warmup = False
        params.use_jinja = True
        params.fit_params = False
        params.verbosity = NO_OUTPUT
        params.endpoint_metrics = True
        self.path, self.threads, self.adapter = path, threads, adapter
        self._configure(params)
        self._folder = TemporaryDirectory(prefix="gristmill-")
        if len(os.fsencode(self._folder.name)) + len("/llama.sock") > LONGEST_SOCKET:
            self._folder.cleanup()
            self._folder = TemporaryDirectory(prefix="gristmill-", dir="/tmp")
        self._socket = f"{self._folder.name}/llama.sock"
        params.hostnames = [self._socket]
        try:
            self._server = Server(params)
        except RuntimeError as error:
            raise RuntimeFault(f"llama.cpp can't load {adapter or path}: {error}") from error
        self._wait_for_its_loop()

    def _wait_for_its_loop(self) -> None:
        """Wait until llama.cpp's task loop runs, by asking for its metrics, which are one of its tasks. It ignores a
        request to end that comes earlier, so that closing the server at once would hang."""
        self._server.handle_metrics()

    def _configure(self, params: Any) -> None:
        """Change the server's settings: a hook for subclasses."""

    @functools.cached_property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, which equal the rows of the output layer: V."""
        from gguf import GGUFReader

        return len(GGUFReader(self.path).fields["tokenizer.ggml.tokens"].data)

    @functools.cached_property
    def context(self) -> int:
        """The most tokens that the model sees at a time."""
        from gguf import GGUFReader

        fields = GGUFReader(self.path).fields
        architecture = fields["general.architecture"].contents()
        return int(fields[f"{architecture}.context_length"].contents())

    @functools.cached_property
    def _drawn(self) -> list[list[float]]:
        """A bias that forces a letter, which leaves the reported probabilities as they are. llama.cpp reports none if
        it draws a token that is a part of a character."""
        return [[self.tokenize("a")[-1], FORCED]]

    def tokenize(self, text: str) -> list[int]:
        return self._ids(text, special=False, whole=True)

    def _ids(self, text: str, *, special: bool, whole: bool = False) -> list[int]:
        """The ids of a text, whose special tokens are parsed or stay text. A `whole` text begins as the file says."""
        ids: list[int] = self._posted("/tokenize", content=text, add_special=whole, parse_special=special)["tokens"]
        return ids

    def _posted(self, path: str, **request: Any) -> dict[str, Any]:
        """The server's answer to a request that the binding lacks a method for."""
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(ANSWER_SECONDS)
            connected.connect(self._socket)
            connection = http.client.HTTPConnection("localhost", timeout=ANSWER_SECONDS)
            connection.sock = connected
            connection.request("POST", path, json.dumps(request), {"Content-Type": "application/json"})
            return self._answered(json.loads(connection.getresponse().read()))

    @functools.cached_property
    def _controls(self) -> Controls:
        from gguf import GGUFReader, TokenType

        fields = GGUFReader(self.path).fields
        types = fields["tokenizer.ggml.token_type"].contents()
        tokens = zip(fields["tokenizer.ggml.tokens"].contents(), types, strict=True)
        added = {
            token: type == TokenType.CONTROL
            for token, type in tokens
            if type in (TokenType.CONTROL, TokenType.USER_DEFINED)
        }
        return controls_of(added, fields["tokenizer.chat_template"].contents(), self._rendered)

    def _rendered(self, messages: Sequence[Message]) -> str:
        """The prompt that asks for an answer. Raises TemplateFaultError if the template refuses it."""
        try:
            prompt: str = self._posted("/apply-template", messages=[dict(message) for message in messages])["prompt"]
        except RuntimeFault as fault:
            raise TemplateFaultError(REFUSED) from fault
        return prompt

    def _broken_ids(self, messages: Sequence[Message]) -> list[int] | None:
        """The ids of a conversation whose texts spell control tokens, which llama.cpp itself would parse. None for any
        other. Raises RuntimeFault."""
        broken, is_broken = self._controls.broken(messages)
        if not is_broken:
            return None
        try:
            text = self._rendered(broken)
            ids = self._ids(text, special=True, whole=True)
            signs = self._ids(f"a{BREAK}", special=True)[len(self._ids("a", special=True)) :]
            return [ids[place] for place in kept_places(ids, signs, text.count(BREAK))]
        except TemplateFaultError as fault:
            raise RuntimeFault(f"The chat template refuses the conversation ({fault})") from fault

    def log_probabilities(self, prompt: str | Sequence[int]) -> LogProbabilities:
        """(V,) as in the protocol. A string is parsed with its special tokens."""
        (token,) = self._complete(
            prompt, n_predict=1, n_probs=self.vocab_size, ignore_eos=False, logit_bias=self._drawn
        )
        return self._array(token["top_logprobs"])

    @functools.cached_property
    def _library(self) -> LlamaLibrary:
        return LlamaLibrary(self.path, threads=self.threads, adapter=self.adapter)

    def all_log_probabilities(self, ids: Sequence[int]) -> AllLogProbabilities:
        return self._library.all_log_probabilities(ids)

    def greedy(self, prompt: str | Sequence[int], tokens: int) -> list[int]:
        """The ids of the continuation as in the protocol. A string is parsed with its special tokens. Uses the library,
        as the server doesn't report tokens that are parts of a character."""
        return self._library.greedy(self._ids(prompt, special=True) if isinstance(prompt, str) else prompt, tokens)

    def chat_log_probabilities(self, messages: Sequence[Message]) -> LogProbabilities:
        ids = self._broken_ids(messages)
        if ids is not None:
            return self.log_probabilities(ids)
        answer = self._chat(messages, max_tokens=1, logprobs=True, top_logprobs=self.vocab_size, logit_bias=self._drawn)
        (token,) = answer["logprobs"]["content"]
        return self._array(token["top_logprobs"])

    def chat(self, messages: Sequence[Message], tokens: int = 128, temperature: float = 0.0) -> str:
        drawn = {"temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        ids = self._broken_ids(messages)
        if ids is not None:
            return self.text_after(ids, tokens, **drawn).strip()
        content: str = self._chat(messages, max_tokens=tokens, **drawn)["message"]["content"]
        return content.strip()

    def targets(self, ids: Sequence[int], start: int) -> list[NextToken]:
        """The likelihood of each token from `start` on, after those before it."""
        return self._library.targets(ids, start)

    def decode(self, ids: Sequence[int]) -> str:
        return self._library.text_of(ids).decode("utf-8", errors="replace")

    def text_after(self, prompt: Sequence[int], tokens: int, **sampling: Any) -> str:
        """The continuation as text, at most `tokens` long. `sampling` are fields of llama.cpp's requests, such as
        `temperature`, `seed` and `stop`."""
        request = {"prompt": list(prompt), "n_predict": tokens, "temperature": 0, "cache_prompt": True, **sampling}
        text: str = self._answered(self._server.handle_completions(request))["choices"][0]["text"]
        return text

    def close(self) -> None:
        if "_library" in self.__dict__:
            self._library.close()
        del self._server
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _array(self, entries: Iterable[Mapping[str, Any]]) -> LogProbabilities:
        """(V,) of reported tokens. Tokens that llama.cpp leaves out have probability 0."""
        values = np.full(self.vocab_size, -math.inf)
        for entry in entries:
            values[int(entry["id"])] = float(entry["logprob"])
        return values

    def _chat(self, messages: Sequence[Message], **request: Any) -> dict[str, Any]:
        conversation = [dict(message) for message in messages]
        request = {"messages": conversation, "temperature": 0, "cache_prompt": False, **request}
        choice: dict[str, Any] = self._answered(self._server.handle_chat_completions(request))["choices"][0]
        return choice

    def _complete(self, prompt: str | Sequence[int], **request: Any) -> list[dict[str, Any]]:
        text_or_ids = prompt if isinstance(prompt, str) else list(prompt)
        request = {"prompt": text_or_ids, "temperature": 0, "cache_prompt": False, **request}
        choice = self._answered(self._server.handle_completions(request))["choices"][0]
        content: list[dict[str, Any]] = choice["logprobs"]["content"]
        return content

    def _answered(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "error" in answer:
            raise RuntimeFault(f"llama.cpp refused a request to {self.path.name}: {answer['error']}")
        return answer
