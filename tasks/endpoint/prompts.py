"""The likeliest tokens in the place of those of a text: POST /completions with `prompt_logprobs`, as vLLM has it and
`gristmill serve` too.

Nothing says which vocabulary a server has, so the texts of all tokens that it names are compared.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from models.tokenizer import token_text
from storage.errors import ConfigError, SourceError, TokenizerMismatch
from storage.shards.lines import parse_json
from tasks.endpoint.client import address_of, answered_choice, api_key, counted_tokens
from tasks.endpoint.config import OURS, EndpointConfig, Fields
from tasks.endpoint.paid import PaidAnswers
from tasks.endpoint.sender import MOST_BYTES, Sender
from tasks.stage.runtime import EndpointRuntime, EndpointUrl

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PATH = "completions"
ENTRY_BYTES = 256  # at most, of a token of an answer, on average
SLACK = 1e-3  # by which rounding may lift a probability above 1
LEAST = -1e5  # of a log-probability: servers write -9999 for none
ID = re.compile(r"[0-9]{1,9}")
PART = "\N{REPLACEMENT CHARACTER}"  # in the text of a token that is a part of a character


class TokenEndpoint(EndpointConfig):
    """An OpenAI-compatible endpoint that gives log-probabilities of the tokens of a text."""

    ours: ClassVar = {
        **OURS,
        "prompt": "the texts are written there",
        "prompt_logprobs": "write it as `top_k`",
        "echo": "the answer's text isn't read",
    }

    url: EndpointUrl = Field(
        description="address, such as https://host/v1 (/completions is added). All rows are sent there, as token ids"
    )
    fields: Fields = Field(
        {},
        description="further fields of each request, which replace ours but model, prompt, prompt_logprobs, echo, "
        "stream and n. A field set to null is left out",
    )
    top_k: int = Field(20, ge=1, description="likeliest tokens to ask for in each place (vLLM: 20 unless told more)")


class Asked(NamedTuple):
    """A text, the places of which the tokens are asked for, and its name for an error."""

    ids: Sequence[int]
    places: Sequence[int]
    name: str = ""


def body_of(config: TokenEndpoint, asked: Asked) -> dict[str, Any]:
    """The body of a request. Servers write one token at least."""
    body = {"model": config.model, "prompt": list(asked.ids), "max_tokens": 1, "temperature": 0.0}
    body = {**body, "prompt_logprobs": config.top_k, **config.fields}
    return {name: value for name, value in body.items() if value is not None}


def key_of(config: TokenEndpoint, asked: Asked) -> str:
    """The digest of a request, without the address."""
    return hashlib.sha256(json.dumps([body_of(config, asked), list(asked.places)], sort_keys=True).encode()).hexdigest()


class TokenSender(Sender):
    """Asks for the tokens of texts of at most `longest` tokens. A refused request ends the stage."""

    drops_refused = False
    remedy = (
        "its url, its model and the key. It must take token ids and prompts of a row's length, and give top_k tokens "
        "(vLLM: --max-logprobs; gristmill serve: requests.control_tokens)"
    )

    def __init__(
        self,
        config: TokenEndpoint,
        section: str,
        runtime: EndpointRuntime,
        paid: PaidAnswers,
        vocabulary: Vocabulary,
        longest: int,
    ) -> None:
        super().__init__(address_of(config, section, PATH), api_key(config, section), section, runtime, paid)
        self.config, self.vocabulary = config, vocabulary
        self.most_bytes = MOST_BYTES + ENTRY_BYTES * (config.top_k + 1) * longest

    def ask(
        self, texts: Mapping[str, Asked], on_wait: Callable[[], None]
    ) -> Generator[tuple[str, dict[str, Any] | None], None, None]:
        """The answer to each text, by the digest of its request (`key_of`). Raises SourceError, ConfigError for a
        server without such probabilities, and TokenizerMismatch for one with another vocabulary."""
        return self.in_order(((key, self._call(key, asked)) for key, asked in texts.items()), on_wait)

    def _call(self, key: str, asked: Asked) -> Callable[[], dict[str, Any] | None]:
        about = f" It was asked about {asked.name}, of {len(asked.ids):,} tokens."
        return partial(self.kept, key, body_of(self.config, asked), partial(self._read, asked), about)

    def _read(self, asked: Asked, content: bytes) -> dict[str, Any]:
        """What is kept of an answer: for each place, `top_k` ids and their log-probabilities, the likeliest first."""
        try:
            completion = parse_json(content)
            choice = answered_choice(completion)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise SourceError("Its reply is not a completion.", "Check the url of the endpoint.") from error
        told = choice.get("prompt_logprobs")
        if told is None:
            raise ConfigError(
                f"The endpoint {self.host} gives no prompt_logprobs.",
                "Take a server that does: vLLM, or gristmill serve with engine.name transformers.",
            )
        if not isinstance(told, list) or len(told) != len(asked.ids):
            found = f"{len(told):,}" if isinstance(told, list) else "no"
            raise _unusable(f"it has {found} entries for a text of {len(asked.ids):,} tokens")
        compared = 0
        ids, logs = list[int](), list[float]()
        for place in asked.places:
            entries = told[place]
            likely, named = self._entries(entries, place)
            if asked.ids[place] not in likely:
                raise _unusable(f"the entries of token {place:,} lack that token")
            compared += named
            top = sorted(likely.items(), key=lambda pair: (-pair[1], pair[0]))[: self.config.top_k]
            if len(top) < self.config.top_k:
                raise _unusable(f"it gives {len(top):,} of {self.config.top_k:,} tokens")
            if sum(math.exp(log) for _, log in top) > 1 + SLACK:
                raise _unusable(f"the probabilities of token {place:,} sum to more than 1")
            ids += (id for id, _ in top)
            logs += (log for _, log in top)
        if not compared:
            raise ConfigError(
                f"The endpoint {self.host} doesn't say what its tokens are, so its vocabulary can't be compared.",
                "Take a server that gives decoded_token.",
            )
        return {"ids": _written(ids, "<i4"), "logs": _written(logs, "<f4"), **counted_tokens(completion)}

    def _entries(self, entries: Any, place: int) -> tuple[dict[int, float], int]:
        """The log-probabilities of a place by id, and how many of the tokens could be compared."""
        found, compared = dict[int, float](), 0
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            log = entry.get("logprob") if isinstance(entry, dict) else None
            if not ID.fullmatch(name) or not isinstance(log, int | float) or isinstance(log, bool):
                raise _unusable(f"the entries of token {place:,} are not log-probabilities by id")
            if not LEAST <= log <= SLACK:  # NaN isn't
                raise _unusable(f"{str(log)[:20]} of token {place:,} is no log-probability")
            compared += self.vocabulary.check(int(name), entry.get("decoded_token"))
            found[int(name)] = min(float(log), 0.0)
        return found, compared


class Vocabulary:
    """The vocabulary that a server must have: `size` tokens, with the texts of a tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, size: int, remedy: str) -> None:
        self._tokenizer, self._size, self._remedy = tokenizer, size, remedy
        self._texts: dict[int, tuple[str, str]] = {}

    def check(self, id: int, told: Any) -> bool:
        """Whether a token could be compared: parts of characters and blanks can't, as servers write them differently.
        Raises TokenizerMismatch for another token than ours."""
        if id >= self._size:
            raise TokenizerMismatch(
                f"The endpoint has another vocabulary than the model: its token {id:,} is beyond {self._size:,}.",
                self._remedy,
            )
        if id not in self._texts:  # some decoders write a token differently if it is alone
            self._texts[id] = (token_text(self._tokenizer, id).strip(), self._tokenizer.decode([id]).strip())
        ours = self._texts[id]
        if not isinstance(told, str) or not told.strip() or not all(ours) or PART in f"{told}{ours}":
            return False
        if told.strip() not in ours:
            raise TokenizerMismatch(
                f"The endpoint has another vocabulary than the model: its token {id:,} is {told!r}, ours {ours[0]!r}.",
                self._remedy,
            )
        return True


def tokens_of(answer: Mapping[str, Any], top_k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Ids and log-probabilities (places, top_k) of an answer that was kept."""
    ids, logs = (
        np.frombuffer(base64.b64decode(answer[name]), kind).reshape(-1, top_k)
        for name, kind in (("ids", "<i4"), ("logs", "<f4"))
    )
    return ids, logs


def _written(numbers: Iterable[float], kind: str) -> str:
    return base64.b64encode(np.array(list(numbers), kind).tobytes()).decode()


def _unusable(why: str) -> SourceError:
    return SourceError(f"Its reply is unusable: {why}.", "Check that the server has vLLM's prompt_logprobs.")
