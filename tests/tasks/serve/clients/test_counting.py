"""The same request costs the same by any route, and what it costs is what the client counts itself."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import openai
import pytest

from tests.tasks.serve.clients.conftest import PRICES, Clients, exactly

ASKED: list[Any] = [{"role": "user", "content": "Where does the fox live? <|end|>"}]
COUNTERS = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "gristmill_cost_usd_total",
)
SAID = "The fox lives in the wood, they say."


class Counts:
    """A key's requests, by everything that counts them."""

    def __init__(self, clients: Clients, name: str, *options: str) -> None:
        self.clients, made = clients, clients.key(name, *options)
        self.id, self.key = made["id"], made["key"]
        self.before = self._now()

    def _now(self) -> dict[str, float]:
        return {name: self.clients.server.metric(name) for name in COUNTERS}

    def spent(self) -> int:
        """The tokens of the ledger, as `gristmill serve keys list` shows them."""
        listed = json.loads(self.clients.command("keys", "list", "--json", "--state", str(self.clients.server.state)))
        return next(int(row["tokens"]) for row in listed if row["id"] == self.id)

    def moved(self) -> dict[str, float]:
        """The changes of the counters since the last call."""
        before, self.before = self.before, self._now()
        return {name: round(self.before[name] - before[name], 9) for name in COUNTERS}

    def audited(self) -> dict[str, Any]:
        """The last line of the audit log of this key."""
        state = str(self.clients.server.state)
        lines = self.clients.command("audit", "--key", self.id, "--json", "--state", state).splitlines()
        last: dict[str, Any] = json.loads(lines[-1])
        return last


def test_the_same_request_counts_the_same_by_any_route(clients: Clients) -> None:
    counts = Counts(clients, "counted")
    headers = {"Authorization": f"Bearer {counts.key}"}
    prompt = clients.tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, tokenize=False)
    assert "<|end|><|end|>" in prompt
    chat = {"model": "plain", "messages": ASKED, "max_tokens": 12, "top_k": 1}
    expected = None
    for route in ("chat/completions", "messages"):
        for stream in (False, True):
            answer = httpx.post(f"{clients.server.url}/v1/{route}", json={**chat, "stream": stream}, headers=headers)
            assert answer.status_code == 200, answer.text
            moved, line = counts.moved(), counts.audited()
            one = (moved, {name: line[name] for name in ("prompt_tokens", "completion_tokens", "cost_usd", "finish")})
            assert line["streamed"] is stream
            expected = expected or one
            assert one == expected, (route, stream)
    assert expected is not None
    moved, line = expected
    completion = int(moved["vllm:generation_tokens_total"])
    assert moved["vllm:prompt_tokens_total"] == clients.prompt_tokens(ASKED)
    cost = clients.prompt_tokens(ASKED) * PRICES["usd_per_million_prompt"]
    cost += completion * PRICES["usd_per_million_completion"]
    assert moved["gristmill_cost_usd_total"] == pytest.approx(cost / 1e6)
    assert line == {
        "prompt_tokens": clients.prompt_tokens(ASKED),
        "completion_tokens": completion,
        "cost_usd": pytest.approx(cost / 1e6),
        "finish": "length",
    }
    assert counts.spent() == 4 * (clients.prompt_tokens(ASKED) + completion)


def test_a_stream_that_the_client_leaves_is_booked_as_sent(clients: Clients) -> None:
    counts = Counts(clients, "leaver")
    stream = clients.openai_with(counts.key).chat.completions.create(
        model="plain", messages=ASKED, stream=True, extra_body={"grammar": 'root ::= "fox " root'}
    )
    seen = ""
    for chunk in stream:
        seen += chunk.choices[0].delta.content or ""
        if len(seen) > 40:
            break
    stream.close()
    line = settled(counts, "abort")
    assert line["completion_tokens"] >= clients.tokens(seen)
    assert line["completion_tokens"] < 2000
    assert line["prompt_tokens"] == clients.prompt_tokens(ASKED)
    assert counts.spent() == line["prompt_tokens"] + line["completion_tokens"]


def settled(counts: Counts, finish: str) -> dict[str, Any]:
    """The audit line of a request that ends by itself in a moment."""
    deadline = time.monotonic() + 10
    while True:
        if counts.clients.server.audit()[-1]["key"] == counts.id:
            line = counts.audited()
            assert line["finish"] == finish
            return line
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_refused_request_costs_nothing(clients: Clients) -> None:
    counts = Counts(clients, "refused")
    cases: list[dict[str, Any]] = [{"extra_body": {"grammar": "root ::= ("}}, {"model": "other"}, {"tools": [{"x": 1}]}]
    for fields in cases:
        with pytest.raises(openai.APIStatusError):
            clients.openai_with(counts.key).chat.completions.create(**{"model": "plain", "messages": ASKED, **fields})
        moved = counts.moved()
        assert not any(moved.values()), moved
        assert (counts.audited()["status"], counts.audited()["prompt_tokens"]) in ((400, 0), (404, 0))
    assert counts.spent() == 0


def test_a_masked_answer_counts_as_sent(clients: Clients) -> None:
    counts = Counts(clients, "masked")
    said, sent = "Write to jane.doe@corp-mail.com today.", "Write to <EMAIL_ADDRESS> today."
    client = clients.openai_with(counts.key)
    asked: dict[str, Any] = {"model": "plain", "messages": ASKED, "extra_body": exactly(said)}
    answer = client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == sent
    assert answer.usage is not None
    assert answer.usage.completion_tokens == clients.tokens(sent) != clients.tokens(said)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(one.choices[0].delta.content or "" for one in chunks[:-1]) == sent
    assert chunks[-1].usage == answer.usage
    assert counts.spent() == 2 * answer.usage.total_tokens


def test_a_budget_that_ends_in_a_stream_ends_it_in_order(clients: Clients) -> None:
    prompt = clients.prompt_tokens(ASKED)
    counts = Counts(clients, "budgeted", "--budget-tokens", str(prompt + 25))
    client = clients.openai_with(counts.key)
    asked: dict[str, Any] = {"model": "plain", "messages": ASKED, "extra_body": {"grammar": 'root ::= "fox " root'}}
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(one.choices[0].delta.content or "" for one in chunks[:-1])
    assert [one.choices[0].finish_reason for one in chunks[:-1] if one.choices[0].finish_reason] == ["length"]
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == clients.tokens(text) <= 25
    assert counts.spent() == prompt + clients.tokens(text)
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**asked)
    assert (caught.value.code, "budget" in caught.value.message) == ("insufficient_quota", True)
    assert counts.spent() == prompt + clients.tokens(text)


def test_the_tokens_of_several_answers_are_counted_together(clients: Clients) -> None:
    counts = Counts(clients, "several")
    answer = clients.openai_with(counts.key).chat.completions.create(
        model="plain", messages=ASKED, n=3, max_tokens=8, extra_body=exactly(SAID)
    )
    texts = [choice.message.content or "" for choice in answer.choices]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(map(clients.tokens, texts))
    assert answer.usage.prompt_tokens == clients.prompt_tokens(ASKED)
    assert counts.spent() == answer.usage.total_tokens


def test_an_engine_that_dies_in_a_stream_is_booked_as_sent(clients: Clients) -> None:
    """Last in this file, as the engine takes seconds to come back."""
    counts = Counts(clients, "unlucky")
    for route in ("chat/completions", "messages"):
        before = counts.spent()
        body = {"model": "plain", "messages": ASKED, "stream": True, "temperature": 0, "max_tokens": 8000}
        seen, lines, killed = "", [], False
        with httpx.stream(
            "POST", f"{clients.server.url}/v1/{route}", json=body, headers={"X-Api-Key": counts.key}, timeout=60
        ) as answer:
            for line in answer.iter_lines():
                if seen and not killed:
                    clients.kill_engine()
                    killed = True
                lines += [line] if line else []
                if line.startswith("data: {"):
                    seen += _text(json.loads(line.removeprefix("data: ")))
        if route == "messages":
            assert lines[-2] == "event: error"
            failed = json.loads(lines[-1].removeprefix("data: "))
        else:
            assert lines[-1] == "data: [DONE]"
            failed = json.loads(lines[-2].removeprefix("data: "))
        assert failed["error"]["type"] == "overloaded_error"
        booked = settled(counts, "error")
        assert booked["completion_tokens"] == clients.tokens(seen) > 0
        assert counts.spent() - before == booked["prompt_tokens"] + booked["completion_tokens"]
        deadline = time.monotonic() + 60
        while httpx.get(f"{clients.server.url}/ready").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def _text(event: dict[str, Any]) -> str:
    if "choices" in event:
        return str(event["choices"][0]["delta"].get("content") or "")
    return str(event.get("delta", {}).get("text", ""))
