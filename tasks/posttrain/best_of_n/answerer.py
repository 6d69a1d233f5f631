"""Who answers prompts several times: an open model, or a model behind an endpoint.

What is sampled follows from the seed of the profile, the row's id and the answer's number, so another `n` keeps the
answers that there are. Continuous batching is the exception: there an answer also depends on those of its batch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from models.conversation import Messages, TemplateFaultError, answer_text, render
from tasks.endpoint.client import Asked, Endpoint, request_body
from tasks.endpoint.paid import PaidAnswers
from tasks.endpoint.reply import Reply
from tasks.posttrain.best_of_n.config import BestOfNConfig

if TYPE_CHECKING:
    from tasks.stage.runtime import Runtime

SECTION = "best_of_n.endpoint"
LEARNED = 4  # answers of a forward pass of the training, from which the sampler takes its batch


class Said(NamedTuple):
    """An answer, its tokens, and its fault if it can't be learned from: empty, unfinished, overlong or refused."""

    text: str
    tokens: int
    fault: str


class Answerer(Protocol):
    """A model that answers prompts."""

    def answers(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Said]]:
        """`n` answers to the prompt of each row, or one with a fault if it can't be answered."""


class Model:
    """The model in a folder, with the chat template and the vocabulary beside it."""

    def __init__(self, folder: Path | None, config: BestOfNConfig, runtime: Runtime) -> None:
        import torch

        from models.pretrained import allocate_pretrained, context_of, open_pretrained
        from models.runtimes.greedy import ends_of
        from models.tokenizer import load_tokenizer
        from tasks.children.devices import device_of
        from tasks.posttrain.rollouts.open import open_engine

        assert folder is not None
        threads = runtime.compute.cpu_threads()
        torch.set_num_threads(threads)
        copied = config.rollout.engine == "llama.cpp"  # it reads the folder itself
        model = allocate_pretrained(folder) if copied else open_pretrained(folder, device_of(runtime.compute))
        self.config, self.tokenizer = config, load_tokenizer(folder)
        self.ends = ends_of(model, self.tokenizer)
        self.room = context_of(model.config) - config.max_new_tokens
        given = config.rollout, folder, self.tokenizer, self.ends, config.temperature
        self.engine = open_engine(*given, learned=LEARNED, threads=threads)
        if not copied:
            self.engine.update(model)

    def answers(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Said]]:
        """As the protocol says."""
        from tasks.posttrain.rollouts.sampling import seed_of

        prompts = [self._ids(row["prompt"]) for row in rows]
        asked = [(number, which) for number, ids in enumerate(prompts) if ids for which in range(self.config.n)]
        answers = self.engine.sample(
            [prompts[number] for number, _ in asked],
            [seed_of(_name(self.config, rows[number]["id"], which)) for number, which in asked],
            self.config.max_new_tokens,
        )
        said: list[list[Said]] = [[] if ids else [Said("", 0, "overlong")] for ids in prompts]
        for (number, _), (ids, _) in zip(asked, answers, strict=True):
            reply = Reply.of(answer_text(self.tokenizer, ids, self.ends), finished=ids[-1] in self.ends)
            said[number].append(Said(reply.text, len(ids), reply.fault))
        return said

    def _ids(self, prompt: Messages) -> list[int]:
        """The rendered prompt, or nothing if an answer has no room after it or the template refuses it."""
        try:
            ids: list[int] = render(self.tokenizer, prompt, add_generation_prompt=True)["input_ids"]
        except TemplateFaultError:
            return []
        return ids if len(ids) <= self.room else []


class _Request(NamedTuple):
    key: str
    messages: Messages
    seed: int
    about: str


class Remote:
    """A model behind an endpoint. Each answer is kept under the digest of its request, without the address."""

    def __init__(self, config: BestOfNConfig, runtime: Runtime, paid: PaidAnswers) -> None:
        assert config.endpoint is not None
        asked = Asked(config.max_new_tokens, config.temperature, config.seed, SECTION)
        self.config, self.paid = config, paid
        self.endpoint = Endpoint(config.endpoint, asked, runtime.endpoint, paid)
        self.used: dict[str, None] = {}  # keys of the requests of this artifact

    def answers(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Said]]:
        """As the protocol says."""
        requests = [self._request(row, which) for row in rows for which in range(self.config.n)]
        said: list[Said] = []
        for request, answer in self.endpoint.stream(requests, lambda: None):
            self.used[request.key] = None
            said.append(Said("", 0, "refused") if answer is None else Said(answer.text, answer.tokens, answer.fault))
        return [said[start : start + self.config.n] for start in range(0, len(said), self.config.n)]

    def _request(self, row: Mapping[str, Any], which: int) -> _Request:
        assert self.config.endpoint is not None
        name = _name(self.config, row["id"], which)
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) >> 1  # 31 bits, which every server accepts
        body = request_body(self.config.endpoint, self.endpoint.asked, row["prompt"], self.config.temperature, seed)
        key = hashlib.sha256(json.dumps([which, body], sort_keys=True).encode()).hexdigest()
        return _Request(key, row["prompt"], seed, f" It was asked the prompt of {row['id']}.")


def _name(config: BestOfNConfig, row_id: str, which: int) -> str:
    """What an answer's random numbers follow from."""
    return f"best of n {config.seed} {row_id} {which}"
