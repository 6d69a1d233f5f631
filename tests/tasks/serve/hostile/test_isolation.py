"""Two users at once: what one writes has no part in what the other reads.

A secret in an answer would show little, as a small model repeats nothing. But the probability of each token depends on
the whole context, so those of a greedy answer tell contexts apart: under load they must be what they are alone.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.runtimes.llama_server import LlamaServerSpec, parameters
from tests.tasks.serve.hostile.raw import CHAT, COMPLETIONS, connect, head, posted, statuses
from tests.tasks.serve.hostile.test_planted import values
from tests.tasks.serve.real_server import Server, make_release, serving

SECRETS = {"anna": ("heron-quartz", "maple-seven", "onyx-river"), "bert": ("cobalt-fern", "juniper-two", "velvet-moth")}
PREFIX = "You are the keeper of the wood, and the fox lives in the yard. Nobody in the barn has seen the owl. "
TOKENS = 12
NEAR = 2e-3  # nats: as batches add in another order. Another context differs more


def prompts(user: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests of a user by route. Their beginnings are those of the other's, and of each other."""
    for secret in SECRETS[user]:
        for text in (
            f"{PREFIX}The word is {secret}. What is it?",
            f"The word is {secret}. {PREFIX}",
            f"{PREFIX}{PREFIX}{secret}",
            f"{secret}",
        ):
            yield CHAT, {"messages": [{"role": "user", "content": text}]}
        yield COMPLETIONS, {"prompt": f"{PREFIX}The word is {secret}, and"}
        turns = [{"role": "user", "content": f"I am {secret}."}, {"role": "assistant", "content": "Well."}]
        yield CHAT, {"messages": turns}
        yield CHAT, {"messages": [*turns, {"role": "user", "content": "And now?"}]}


ASKED = [(user, *asked) for user in SECRETS for asked in prompts(user)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model whose answers depend much on their context, with fewer slots than requests."""
    folder = tmp_path_factory.mktemp("isolation")
    release = make_release(folder / "release", scale=4, context=512)
    with serving(release, folder, {"engine": {"slots": 3, "threads": 1, "context": 512}}) as running:
        yield running


def body_of(route: str, asked: dict[str, Any], **fields: Any) -> dict[str, Any]:
    logprobs = {"logprobs": True} if route == CHAT else {"logprobs": 1}
    return {**asked, "max_tokens": TOKENS, "temperature": 0, **logprobs, **fields}


def read(answer: bytes, number: int = 0) -> tuple[str, list[float]]:
    """The text of an answer, and the logarithms of its tokens' probabilities."""
    assert statuses(answer) == [200], answer
    text, logs = "", list[float]()
    for choice in (choice for value in values(answer) for choice in value.get("choices", ())):
        if choice["index"] != number:
            continue
        part = choice.get("delta", choice.get("message", choice))
        text += part.get("content") or part.get("text") or ""
        told = choice.get("logprobs") or {}
        logs += told.get("token_logprobs") or [one["logprob"] for one in told.get("content") or ()]
    return text, logs


def distance(one: list[float], other: list[float]) -> float:
    """The largest difference of two answers' logarithms, as far as both go."""
    size = min(len(one), len(other))
    return float(np.abs(np.subtract(one[:size], other[:size])).max()) if size else float("inf")


def cross(server: Server, requests: int, seed: int) -> None:
    """Ask in a random order, in every form, and compare with the answers alone."""
    alone = [read(posted(server, route, body_of(route, asked))) for _, route, asked in ASKED]
    for (one, _, of_one), (other, _, of_other) in itertools.combinations(ASKED, 2):
        if one != other and of_one.keys() == of_other.keys():
            first, second = (alone[[each[2] for each in ASKED].index(asked)][1] for asked in (of_one, of_other))
            assert distance(first, second) > 3 * NEAR, "answers that can't be told apart show nothing"
    drawn = random.Random(seed)
    wishes = [
        (drawn.randrange(len(ASKED)), drawn.choice(["whole", "stream", "stream", "several", "leaves"]), number)
        for number in range(requests)
    ]

    def ask(wish: tuple[int, str, int]) -> str:
        place, form, number = wish
        user, route, asked = ASKED[place]
        mark = f"X-Request-Id: {user}-{seed}-{number:06d}"
        body = body_of(route, asked, stream=form in ("stream", "leaves"), n=2 if form == "several" else 1)
        if form == "leaves":
            data = json.dumps(body).encode()
            length = f"Content-Length: {len(data)}"
            with connect(server) as connection:
                connection.sendall(head(server, f"POST {route}", "Content-Type: application/json", length, mark) + data)
                connection.recv(1 + number % 700)
            return ""
        answer = posted(server, route, body, mark)
        assert f"{user}-{seed}-{number:06d}" in answer.decode()
        other = next(one for one in SECRETS if one != user)
        assert not any(secret in answer.decode() for secret in (*SECRETS[other], f"{other}-{seed}"))
        for each in range(body["n"]):
            text, logs = read(answer, each)
            if not (distance(logs, alone[place][1]) < NEAR and text == alone[place][0]):
                return f"{body}: {text!r} {logs} under load, {alone[place]} alone"
        return ""

    with ThreadPoolExecutor(12) as pool:
        wrong = [found for found in pool.map(ask, wishes) if found]
    assert wrong == []


def test_no_context_crosses(shared: Server) -> None:
    cross(shared, 150, 1)


@pytest.mark.soak
def test_no_context_crosses_in_two_thousand_requests(shared: Server) -> None:
    cross(shared, 2000, 2)


def test_llama_cpp_keeps_no_prompt_beyond_its_slot(release: Path) -> None:
    spec = LlamaServerSpec(str(release / "gguf" / "model-f16.gguf"), "", 64, 2, 1)
    made = parameters(spec)
    assert (made.cache_ram_mib, made.cache_idle_slots, made.kv_unified, made.endpoint_slots) == (0, False, False, False)
