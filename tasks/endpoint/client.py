"""The client of an OpenAI-compatible endpoint that answers and judges: POST /chat/completions.

A request that the server refuses for its content (400, 413, 422: too long, against its rules) drops the prompt. The key
comes from the environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import httpx

from models.conversation import Messages
from storage.errors import ConfigError, SourceError
from storage.shards.lines import parse_json
from tasks.endpoint.config import EndpointConfig
from tasks.endpoint.paid import PaidAnswers
from tasks.endpoint.reply import Fault, Reply
from tasks.endpoint.sender import Sender
from tasks.stage.runtime import EndpointRuntime

TOKEN_BYTES = 32  # at most, of a token of an answer
MOST_TOKENS = 1_000_000_000  # that a server may count for a request or an answer
# Finish reasons of answers that ended by themselves, as servers like OpenAI's name them. With any other it was cut
WHOLE = {"", "stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete"}
HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair
LETTER = re.compile(r"(?<![A-Za-z])([AB])(?![A-Za-z'])")


def api_key(config: EndpointConfig, section: str) -> str | None:
    """The key of the endpoint in this `section` of the profile. Raises ConfigError for a variable that is not set, or
    whose value can't be a key."""
    if config.api_key_env is None:
        return None
    key = os.environ.get(config.api_key_env, "").strip()
    if not re.fullmatch(r"[!-~]+", key):  # httpx would quote an invalid header, the key, in its error
        state = "is not set" if not key else "has characters that a key can't have"
        raise ConfigError(
            f"{section}.api_key_env: the environment variable {config.api_key_env} {state}.",
            f"Set {config.api_key_env} for this process and for its workers.",
        )
    return key


def address_of(config: EndpointConfig, section: str, path: str = "chat/completions") -> httpx.URL:
    """The URL of requests to the endpoint in this `section` of the profile. Raises ConfigError for an invalid one."""
    try:
        return httpx.URL(f"{config.url.rstrip('/')}/{path}")
    except httpx.InvalidURL as error:
        raise ConfigError(f"{section}.url is not an address: {error}.", "Write it as https://host/v1.") from error


def read_completion(content: bytes) -> dict[str, Any]:
    """The text of a chat completion, whether it was finished, the name of its fault, and its tokens. Raises SourceError
    for anything else."""
    try:
        completion = parse_json(content.decode(errors="replace"))  # one bad byte must not cost the answer
        choice = answered_choice(completion)
        text = _text_of(choice["message"].get("content"))
        tokens = counted_tokens(completion)
        finished = str(choice.get("finish_reason") or "").lower() in WHOLE
        whole = HALF.sub("\ufffd", text)  # JSON may spell half of a character
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise SourceError("The reply is not a chat completion.", "Check the url of the endpoint.") from error
    return {"text": whole, "finished": finished, "fault": Reply.of(whole, finished=finished).fault, **tokens}


def answered_choice(completion: dict[str, Any]) -> dict[str, Any]:
    """The first choice. Raises SourceError for an error that a server reports in a reply with status 200."""
    choice: dict[str, Any] = (completion.get("choices") or [{}])[0]
    error = completion.get("error") or choice.get("error")
    if error or choice.get("finish_reason") == "error":
        message = error.get("message") if isinstance(error, dict) else error
        raise SourceError(
            f"The endpoint reported an error: {str(message or error)[:300]}.", "Look at its log, or try again later."
        )
    if not choice:
        raise LookupError("no choice")
    return choice


def counted_tokens(completion: dict[str, Any]) -> dict[str, int]:
    """The tokens of a request and of its answer, as the server counts them."""
    return {name: _counted(completion.get("usage"), name) for name in ("prompt_tokens", "completion_tokens")}


def _counted(usage: Any, name: str) -> int:
    """The tokens that a server counted, or 0 for what can't be a number of tokens: an answer that was paid for must not
    be lost to its bill."""
    number = usage.get(name) if isinstance(usage, dict) else None
    return int(number) if isinstance(number, int | float) and 0 <= number <= MOST_TOKENS else 0


def _text_of(content: Any) -> str:
    """The text of a message, which some servers give in parts, without a model's reasoning."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") in ("text", "output_text"))
    text: str = content or ""
    return text


@dataclass(frozen=True)
class Asked:
    """The settings shared by all requests: the maximum tokens of an answer, the temperature of samples, and the seed of
    other answers. `section` is that of the profile with the endpoint, for errors."""

    max_new_tokens: int
    temperature: float
    seed: int
    section: str
    top_p: float | None = None


class Keyed(Protocol):
    """A request with a key of its own, under which its answer is kept, wherever it comes from."""

    @property
    def key(self) -> str:
        """Of the model, the messages, and how the answer is sampled."""

    @property
    def messages(self) -> Messages:
        """What is asked."""

    @property
    def seed(self) -> int:
        """Of the sample."""

    @property
    def about(self) -> str:
        """What is asked about, and what to do if the server fails only on that, for an error."""


K = TypeVar("K", bound=Keyed)


class Completion(NamedTuple):
    """A server's answer, whether it was finished, and its tokens and those of the request as the server counts them."""

    text: str
    finished: bool
    tokens: int
    prompt_tokens: int = 0

    @property
    def fault(self) -> Fault:
        """Its fault, if it is empty or was cut."""
        return Reply.of(self.text, finished=self.finished).fault


def request_body(
    config: EndpointConfig, asked: Asked, messages: Messages, temperature: float, seed: int
) -> dict[str, Any]:
    """The body of a request."""
    body: dict[str, Any] = {
        "model": config.model,
        "messages": [dict(message) for message in messages],
        "max_tokens": asked.max_new_tokens,
        "temperature": temperature,
        "seed": seed,
        "top_p": asked.top_p,
    }
    return {name: value for name, value in {**body, **config.fields}.items() if value is not None}


class Endpoint(Sender):
    """Greedy or sampled answers, by several requests at once. Answers that `paid` has are not requested again."""

    def __init__(self, config: EndpointConfig, asked: Asked, runtime: EndpointRuntime, paid: PaidAnswers) -> None:
        section = asked.section
        super().__init__(address_of(config, section), api_key(config, section), section, runtime, paid)
        self.config, self.asked = config, asked
        self.answered = 0

    def say(self, conversations: Sequence[Messages]) -> list[Reply]:
        """An answer to each conversation, at temperature 0."""
        return self._replies((one, 0, 0.0, self.asked.seed) for one in conversations)

    def sample(self, conversations: Sequence[Messages], number: int, seeds: Sequence[int]) -> list[list[Reply]]:
        """`number` answers to each conversation, by one request each, as not every server gives several at once."""
        requests = [
            (one, which, self.asked.temperature, (seed + which) % 2**31)
            for one, seed in zip(conversations, seeds, strict=True)
            for which in range(number)
        ]
        replies = self._replies(requests)
        return [replies[start : start + number] for start in range(0, len(replies), number)]

    def complete(
        self, conversations: Sequence[Messages], numbers: Sequence[int], seeds: Sequence[int]
    ) -> list[Completion | None]:
        """An answer to each conversation, sampled with its seed, as the server gave it, or None if it refused the
        request. `numbers` distinguish samples of the same conversation."""
        temperature = self.asked.temperature
        requests = [
            (one, number, temperature, seed) for one, number, seed in zip(conversations, numbers, seeds, strict=True)
        ]
        with ThreadPoolExecutor(self.runtime.concurrent_requests) as pool:
            return list(pool.map(self._complete_one, requests))

    def stream(
        self, requests: Iterable[K], on_wait: Callable[[], None]
    ) -> Generator[tuple[K, Completion | None], None, None]:
        """Each request with its answer, sampled with its seed, or None if the server refused it, in order and as they
        come. While the next one doesn't, calls `on_wait`. When it ends early, no further request is sent, and pending
        answers are awaited and kept."""

        def call(one: K) -> Callable[[], Completion | None]:
            body = request_body(self.config, self.asked, one.messages, self.asked.temperature, one.seed)
            return partial(self._answered, one.key, body, one.about)

        return self.in_order(((one, call(one)) for one in requests), on_wait)

    def compare(self, questions: Sequence[Messages]) -> list[Reply]:
        """A or B for each question, or an unclear reply if the answer names neither or both."""
        return [letter_of(reply) for reply in self.say(questions)]

    def _replies(self, requests: Iterable[tuple[Messages, int, float, int]]) -> list[Reply]:
        """The replies in order. After an error no further request is sent, and pending answers are awaited and kept."""
        with ThreadPoolExecutor(self.runtime.concurrent_requests) as pool:
            return list(pool.map(self._reply, requests))

    def _reply(self, request: tuple[Messages, int, float, int]) -> Reply:
        answer = self._complete_one(request)
        return Reply("", "refused") if answer is None else Reply.of(answer.text, finished=answer.finished)

    def _complete_one(self, request: tuple[Messages, int, float, int]) -> Completion | None:
        messages, number, temperature, seed = request
        body = request_body(self.config, self.asked, messages, temperature, seed)
        # The number distinguishes samples if `fields` removes the seed from the body
        digest = hashlib.sha256(json.dumps([str(self.address), number, body], sort_keys=True).encode()).hexdigest()
        return self._answered(digest, body)

    def _answered(self, key: str, body: dict[str, Any], about: str = "") -> Completion | None:
        """The answer that is kept under a key, or else the server's, which then is."""
        answer = self.kept(key, body, self._read, about)
        self.answered += 1
        if answer is None:
            return None
        most = TOKEN_BYTES * self.asked.max_new_tokens  # a server that ignores max_tokens must not fill the memory
        text = answer["text"].encode()[:most].decode(errors="ignore")
        finished = answer["finished"] and text == answer["text"]
        return Completion(text, finished, answer["completion_tokens"], answer["prompt_tokens"])

    def _read(self, content: bytes) -> dict[str, Any]:
        answer = read_completion(content)
        return {**answer, "text": self.without_key(answer["text"])}


def letter_of(reply: Reply) -> Reply:
    """A or B if the reply names exactly one of them, else an unclear reply."""
    if reply.fault not in ("", "unfinished"):
        return reply
    named = set(LETTER.findall(reply.text))
    return Reply(named.pop()) if len(named) == 1 else Reply(reply.text, "unclear")
