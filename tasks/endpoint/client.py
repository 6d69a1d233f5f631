"""An OpenAI-compatible endpoint as the one who answers and judges: POST /chat/completions.

What passes is repeated, with twice the pause each time: 408, 429, 5xx, a connection that fails, an answer that is late
or no JSON. Of a request that the server refuses for what it holds (400, 413, 422: too long, against its rules) the
prompt is dropped; anything else ends the stage at once. The key comes from the environment, and leaves this process in
one header alone; redirects are not followed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from models.conversation import Messages
from storage.credentials import HIDDEN
from storage.errors import ConfigError, SourceError
from storage.shards.lines import parse_json
from tasks.endpoint.config import EndpointConfig
from tasks.endpoint.paid import PaidAnswers
from tasks.endpoint.reply import Fault, Reply
from tasks.stage.runtime import EndpointRuntime

TOKEN_BYTES = 32  # of a token of an answer, at the most
SECRET_LETTERS = 8
MOST_BYTES = 8_000_000  # of an answer
LONGEST_PAUSE = 120.0  # seconds, whatever the server asks for
PASSING = {408, 429, *range(500, 600)}
REFUSED = {400, 413, 422}
# The reasons for which an answer ends by itself, of servers that follow OpenAI's; by all others it was cut
WHOLE = {"", "stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete"}
LETTER = re.compile(r"(?<![A-Za-z])([AB])(?![A-Za-z'])")


class _Passing(Exception):
    """What may be otherwise the next time; `pause` are the seconds that the server asks for."""

    def __init__(self, what: str, pause: float = 0.0) -> None:
        super().__init__(what)
        self.pause = pause


def api_key(config: EndpointConfig, section: str) -> str | None:
    """The key; `section` of the profile has the endpoint. Raises ConfigError for a variable that is not set, or holds
    what can't be a key."""
    if config.api_key_env is None:
        return None
    key = os.environ.get(config.api_key_env, "").strip()
    if not re.fullmatch(r"[!-~]+", key):  # what is in a header; httpx would quote it in its error
        state = "is not set" if not key else "holds characters that no key has"
        raise ConfigError(
            f"{section}.api_key_env: the environment variable {config.api_key_env} {state}.",
            f"Set {config.api_key_env} for this process and for its workers.",
        )
    return key


def address_of(config: EndpointConfig, section: str) -> httpx.URL:
    """Where requests go; `section` of the profile has the endpoint. Raises ConfigError for what is no address."""
    try:
        return httpx.URL(f"{config.url.rstrip('/')}/chat/completions")
    except httpx.InvalidURL as error:
        raise ConfigError(f"{section}.url is no address: {error}.", "Write it as https://host/v1.") from error


def read_completion(content: bytes) -> dict[str, Any]:
    """The text of a chat completion, whether it came to its end, its fault by name, and the tokens. Raises SourceError
    for anything else."""
    try:
        found = parse_json(content)
        _check_answered(found)
        choice = found["choices"][0]
        text = _text_of(choice["message"].get("content"))
        usage = found.get("usage") or {}
        tokens = {name: int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")}
        finished = str(choice.get("finish_reason") or "").lower() in WHOLE
        whole = text.encode(errors="replace").decode()  # JSON may spell half of a character
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise SourceError("This is no chat completion.", "Check the url of the endpoint.") from error
    return {"text": whole, "finished": finished, "fault": Reply.of(whole, finished=finished).fault, **tokens}


def _check_answered(found: dict[str, Any]) -> None:
    """Raises SourceError for an error that a server tells as if it were an answer."""
    choice = (found.get("choices") or [{}])[0]
    error = found.get("error") or choice.get("error")
    if error or choice.get("finish_reason") == "error":
        told = error.get("message") if isinstance(error, dict) else error
        raise SourceError(f"The endpoint told an error: {str(told or error)[:300]}.", "Look at its log, or ask later.")


def _text_of(content: Any) -> str:
    """The text of a message, which some servers give in parts; what a model thought is none of it."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") in ("text", "output_text"))
    text: str = content or ""
    return text


@dataclass(frozen=True)
class Asked:
    """What all requests have in common: the most tokens of an answer, the temperature of samples, the seed of the
    others; and the section of the profile that has the endpoint, for errors."""

    max_new_tokens: int
    temperature: float
    seed: int
    section: str


class Completion(NamedTuple):
    """What a server answered, whether it came to its end, and its tokens as the server counts them."""

    text: str
    finished: bool
    tokens: int

    @property
    def fault(self) -> Fault:
        """Whether it is empty or was cut."""
        return Reply.of(self.text, finished=self.finished).fault


class Endpoint:
    """Greedy or sampled answers, several requests at once; what was answered once is not asked for again."""

    def __init__(self, config: EndpointConfig, asked: Asked, runtime: EndpointRuntime, paid: PaidAnswers) -> None:
        self.config, self.asked, self.runtime, self.paid = config, asked, runtime, paid
        self.address = address_of(config, asked.section)
        self.host = self.address.host
        self.repeated = 0
        self._key = api_key(config, asked.section)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        limits = httpx.Limits(max_connections=runtime.concurrent_requests)
        self._client = httpx.Client(headers=headers, timeout=runtime.timeout_seconds, limits=limits)
        self._stopped = threading.Event()

    def say(self, conversations: Sequence[Messages]) -> list[Reply]:
        """At temperature 0."""
        return self._all((one, 0, 0.0, self.asked.seed) for one in conversations)

    def sample(self, conversations: Sequence[Messages], number: int, seeds: Sequence[int]) -> list[list[Reply]]:
        """A request each, as not every server gives several answers."""
        asked = [
            (one, which, self.asked.temperature, (seed + which) % 2**31)
            for one, seed in zip(conversations, seeds, strict=True)
            for which in range(number)
        ]
        replies = self._all(asked)
        return [replies[start : start + number] for start in range(0, len(replies), number)]

    def complete(
        self, conversations: Sequence[Messages], numbers: Sequence[int], seeds: Sequence[int]
    ) -> list[Completion | None]:
        """An answer to each conversation, at the temperature of samples and with its seed, as the server gave it; None
        where it refused the request. `numbers` tell samples of one conversation apart."""
        temperature = self.asked.temperature
        asked = [
            (one, number, temperature, seed) for one, number, seed in zip(conversations, numbers, seeds, strict=True)
        ]
        with ThreadPoolExecutor(self.runtime.concurrent_requests) as pool:
            return list(pool.map(self._completed, asked))

    def compare(self, questions: Sequence[Messages]) -> list[Reply]:
        """The letter that is named alone."""
        return [_letter(reply) for reply in self.say(questions)]

    def _all(self, asked: Iterable[tuple[Messages, int, float, int]]) -> list[Reply]:
        """The replies in order. After an error nothing more is asked, and what is under way is waited for and kept."""
        with ThreadPoolExecutor(self.runtime.concurrent_requests) as pool:
            return list(pool.map(self._ask, asked))

    def _ask(self, asked: tuple[Messages, int, float, int]) -> Reply:
        answer = self._completed(asked)
        return Reply("", "refused") if answer is None else Reply.of(answer.text, finished=answer.finished)

    def _completed(self, asked: tuple[Messages, int, float, int]) -> Completion | None:
        messages, number, temperature, seed = asked
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": [dict(message) for message in messages],
            "max_tokens": self.asked.max_new_tokens,
            "temperature": temperature,
            "seed": seed,
        }
        body = {name: value for name, value in {**body, **self.config.fields}.items() if value is not None}
        # With the number, as repetitions of a body without a seed are alike
        request = hashlib.sha256(json.dumps([str(self.address), number, body], sort_keys=True).encode()).hexdigest()
        answer = self.paid.get(request)
        if answer is None:
            try:
                answer = self._answered(body)
            except SourceError:
                self._stopped.set()
                raise
            if answer is None:
                return None
            self.paid.keep(request, answer)
        most = TOKEN_BYTES * self.asked.max_new_tokens  # a server that does not cut is not to fill the memory
        text = answer["text"].encode()[:most].decode(errors="ignore")
        return Completion(text, answer["finished"] and text == answer["text"], answer["completion_tokens"])

    def _answered(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer; None where the server refuses this request, or another one has failed, which is raised. Raises
        SourceError once it has been repeated as often as may be."""
        problem, pause = "", 0.0
        for attempt in range(self.runtime.retries + 1):
            if self._stopped.wait(pause):
                return None
            try:
                return self._once(body)
            except _Passing as error:
                problem, asked_for = str(error), error.pause
            except httpx.RequestError as error:
                problem, asked_for = type(error).__name__, 0.0
            self.repeated += attempt < self.runtime.retries
            pause = min(max(asked_for, self.runtime.backoff_seconds * 2**attempt), LONGEST_PAUSE)
        raise SourceError(
            f"The endpoint {self.host} failed {self.runtime.retries + 1} times: {problem}.",
            "What was answered is kept: run again when it works, with fewer runtime.endpoint.concurrent_requests where "
            "it answers 429.",
        )

    def _once(self, body: dict[str, Any]) -> dict[str, Any] | None:
        with self._client.stream("POST", self.address, json=body) as response:
            content, status = self._content(response), response.status_code
            pause = _seconds(response.headers.get("retry-after", ""))
        if status in PASSING:
            raise _Passing(f"it answered {status}{self._quoted(content)}", pause)
        if status in REFUSED:
            return None
        if status != 200:
            raise SourceError(
                f"The endpoint {self.host} answered {status}{self._quoted(content)}.",
                f"Check {self.asked.section}: its url, its model and the key.",
            )
        try:
            answer = read_completion(content)
        except SourceError as error:
            raise _Passing(f"it answered what is no chat completion{self._quoted(content)}") from error
        return {**answer, "text": self._without_key(answer["text"])}

    def _content(self, response: httpx.Response) -> bytes:
        """The body, of bounded size and within the time for a request."""
        content, ends = b"", time.monotonic() + self.runtime.timeout_seconds
        for part in response.iter_bytes():
            content += part
            if len(content) > MOST_BYTES:
                raise _Passing(f"an answer of more than {MOST_BYTES:,} bytes")
            if time.monotonic() > ends:
                raise _Passing(f"an answer that took more than {self.runtime.timeout_seconds:g} seconds")
        return content

    def _quoted(self, content: bytes) -> str:
        """The beginning of what a server said, for an error."""
        said = " ".join(re.sub(r"[^ -~]+", " ", content[:1000].decode(errors="replace")).split())
        return f": {self._without_key(said)[:200]}" if said else ""

    def _without_key(self, text: str) -> str:
        """Keys of a few letters are what local servers take for one, and words of any answer."""
        return text.replace(self._key, HIDDEN) if self._key and len(self._key) >= SECRET_LETTERS else text


def _letter(reply: Reply) -> Reply:
    """A or B, where one of them is named and the other is not."""
    if reply.fault not in ("", "unfinished"):
        return reply
    named = set(LETTER.findall(reply.text))
    return Reply(named.pop()) if len(named) == 1 else Reply(reply.text, "unclear")


def _seconds(retry_after: str) -> float:
    """What the header says, as seconds; dates, which are rare, as nothing."""
    return float(retry_after) if re.fullmatch(r"\d{1,6}(\.\d+)?", retry_after) else 0.0
