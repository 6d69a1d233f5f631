"""What a guard masks reaches no client, by no route, in no form: a grammar has a real engine say it, and a high
temperature has it do so in other tokens each time."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.manifest import SUMS
from tests.tasks.serve.guards.ready import JWT, KEY
from tests.tasks.serve.hostile.parrot import MODEL, Parrot, parrot
from tests.tasks.serve.hostile.raw import CHAT, COMPLETIONS, MESSAGES, connect, head, is_unharmed, posted, statuses
from tests.tasks.serve.real_server import Server, make_release, serving

EMAIL, CARD, SLUR = "jane.doe@corp-mail.com", "4539 1488 0343 6467", "wetbacks"
SAID = f"Ask {EMAIL} or pay by {CARD}, her key is {KEY}, {JWT}, said the {SLUR} there."
MASKED = "Ask <EMAIL_ADDRESS> or pay by <CREDIT_CARD>, her key is <API_KEY>, <JSON_WEB_TOKEN>, said the <SLUR> there."
# Parts that tell enough
SECRETS = (EMAIL, "doe@corp", "corp-mail", CARD, "1488 0343", "14880343", KEY, KEY[8:24], JWT, JWT[40:60], SLUR)
ROUTES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Who?"}]},
    COMPLETIONS: {"prompt": "Who?"},
}
TOOLS = "{%- if tools -%}{{- tools | tojson -}}{%- endif -%}"
WEATHER = [{"type": "function", "function": {"name": "mail", "parameters": {"type": "object"}}}]


def says(text: str) -> str:
    """A grammar of one text."""
    return f"root ::= {json.dumps(text)}"


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose model may be made to say anything, and whose template takes tools."""
    folder = tmp_path_factory.mktemp("planted")
    release = make_release(folder / "release", context=1024)
    template = release / "chat_template.jinja"
    before = hashlib.sha256(template.read_bytes()).hexdigest()
    template.write_text(TOOLS + template.read_text())
    sums = release / SUMS
    sums.write_text(sums.read_text().replace(before, hashlib.sha256(template.read_bytes()).hexdigest()))
    with serving(release, folder, {"engine": {"slots": 2, "threads": 1, "context": 1024}}) as running:
        yield running
        is_unharmed(running, running.engines()[:1], SECRETS)


def ask(server: Server, route: str, said: str, seed: int, **fields: Any) -> bytes:
    """The bytes of an answer that would be `said`."""
    body = {**ROUTES[route], "max_tokens": 900, "temperature": 2, "seed": seed, "grammar": says(said), **fields}
    answer = posted(server, route, body)
    assert statuses(answer) == [200], answer
    return answer


def values(answer: bytes) -> list[dict[str, Any]]:
    """The JSON of a body, or of its events."""
    body = answer.partition(b"\r\n\r\n")[2]
    if b"text/event-stream" not in answer:
        return [json.loads(body)]
    lines = b"".join(chunks(body)).split(b"\n")
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def chunks(body: bytes) -> Iterator[bytes]:
    """The chunks of a body, as they were sent."""
    while body:
        size, _, body = body.partition(b"\r\n")
        yield body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]


def texts(values: list[dict[str, Any]], answers: int = 1) -> list[str]:
    """The answers in these values of any route."""
    found = [""] * answers
    for value in values:
        for choice in value.get("choices", ()):
            part = choice.get("delta", choice.get("message", choice))
            found[choice["index"]] += part.get("content") or part.get("text") or ""
        found[0] += "".join(block.get("text", "") for block in value.get("content", ()))
        found[0] += value.get("delta", {}).get("text") or ""
    return found


def tokens(value: Any) -> str:
    """All that logprobs tell, joined."""
    if isinstance(value, dict):
        return "".join(one if name == "token" else tokens(one) for name, one in value.items())
    if isinstance(value, list):
        return "".join(one if isinstance(one, str) else tokens(one) for one in value)
    return ""


def keeps_quiet(answer: bytes) -> None:
    """Whether nothing of a secret is in an answer, nor in the texts that its JSON spells."""
    read = values(answer)
    for said in (answer.decode(), json.dumps(read, ensure_ascii=False), *texts(read, 8), tokens(read)):
        assert [secret for secret in SECRETS if secret in said] == []


def speaks(server: Server, route: str, seeds: range) -> None:
    for seed in seeds:
        for stream, logprobs in itertools.product((False, True), (None, 5)):
            fields: dict[str, Any] = {"stream": stream}
            if logprobs is not None:
                fields |= {"logprobs": True, "top_logprobs": 5} if route == CHAT else {"logprobs": 5}
            answer = ask(server, route, SAID, seed, **fields)
            keeps_quiet(answer)
            assert texts(values(answer)) == [MASKED]
        answer = ask(server, route, SAID, seed, n=3, stream=seed % 2 == 0)
        keeps_quiet(answer)
        assert texts(values(answer), 3) == [MASKED] * 3
        for stop in (["@corp"], ["com or"], ["1488"], ["6467,"], ["_a1B2"], ["R8"], ["back"], ["s there"], [" ", "zz"]):
            answer = ask(server, route, SAID, seed, stop=stop, stream=seed % 2 == 0)
            read = json.dumps(values(answer))
            assert [secret for secret in (EMAIL, CARD, KEY, JWT) if secret in read] == []


def test_chat_completions_mask_what_the_model_says(talker: Server) -> None:
    speaks(talker, CHAT, range(2))


def test_completions_mask_what_the_model_says(talker: Server) -> None:
    speaks(talker, COMPLETIONS, range(2))


@pytest.mark.soak
@pytest.mark.parametrize("route", ROUTES)
def test_any_cut_into_tokens_is_masked(talker: Server, route: str) -> None:
    speaks(talker, route, range(2, 20))


@pytest.fixture(scope="module")
def repeated(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Parrot]]:
    """A server before an engine that says anything in parts of any size."""
    folder = tmp_path_factory.mktemp("parrot")
    with parrot() as bird:
        url = {"url": bird.url, "model": MODEL}
        with serving(release, folder, {"engine": {"name": "url", "url": url, "context": 128}}) as running:
            yield running, bird
            is_unharmed(running, [], SECRETS)


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, MESSAGES])
def test_no_route_lets_it_through_at_any_size_of_parts(repeated: tuple[Server, Parrot], route: str) -> None:
    server, bird = repeated
    asked: dict[str, Any] = {**ROUTES.get(route, ROUTES[CHAT]), "max_tokens": 100}
    forms: list[dict[str, Any]] = [{}]
    if route != MESSAGES:
        forms += [{"logprobs": True, "top_logprobs": 2} if route == CHAT else {"logprobs": 2}, {"n": 2}]
    bird.says = SAID
    for bird.size in (1, 2, 3, 5, 8, 13, 34, len(SAID)):
        for form, stream in itertools.product(forms, (False, True)):
            answer = posted(server, route, {**asked, **form, "stream": stream})
            assert statuses(answer) == [200], answer
            keeps_quiet(answer)
            assert texts(values(answer), form.get("n", 1)) == [MASKED] * form.get("n", 1)


def test_calls_of_tools_are_masked_as_their_readers_see_them(talker: Server) -> None:
    escaped = "".join(f"\\u{ord(sign):04x}" for sign in EMAIL)
    digits = CARD.replace(" ", "")
    for number, (call, masked) in enumerate(
        (
            (f'{{"name": "mail", "arguments": {{"to": "{EMAIL}"}}}}', {"to": "<EMAIL_ADDRESS>"}),
            (f'{{"name": "mail", "arguments": {{"to": "{escaped}"}}}}', {"to": "<EMAIL_ADDRESS>"}),
            (f'{{"name": "mail", "arguments": {{"{escaped}": [["{escaped}"]]}}}}', None),
            (f'{{"name": "mail", "arguments": {{"card": {digits}}}}}', {"card": "<CREDIT_CARD>"}),
            (f'{{"name": "mail", "arguments": {{"to": "a\\u0020{KEY}"}}}}', {"to": "a <API_KEY>"}),
            (f'{{"name": "{escaped}", "arguments": {{}}}}', {}),
        )
    ):
        said = f"Well. <tool_call>{call}</tool_call>"
        for stream in (False, True):
            answer = ask(talker, CHAT, said, number, tools=WEATHER, stream=stream)
            keeps_quiet(answer)
            found = json.dumps(values(answer))
            assert '\\"to\\"' in found or "<EMAIL_ADDRESS>" in found or "<CREDIT_CARD>" in found
            if masked is not None and not stream:
                (written,) = values(answer)[0]["choices"][0]["message"]["tool_calls"]
                assert json.loads(written["function"]["arguments"]) == masked


def test_text_around_a_call_is_seen_whole(talker: Server) -> None:
    """What is left when a call is taken out of it may be what the call had cut in two."""
    call = '<tool_call>{"name": "mail", "arguments": {}}</tool_call>'
    for seed, secret in enumerate((EMAIL, CARD, KEY, SLUR)):
        for place in (3, len(secret) // 2, len(secret) - 3):
            said = f"It is {secret[:place]}{call}{secret[place:]} and so on."
            for stream in (False, True):
                answer = ask(talker, CHAT, said, seed, tools=WEATHER, stream=stream)
                keeps_quiet(answer)
                assert "and so on" in texts(values(answer))[0]


def test_a_client_that_leaves_has_read_nothing_either(talker: Server) -> None:
    for size in (1, 300, 900):
        body = {**ROUTES[CHAT], "max_tokens": 900, "temperature": 2, "grammar": says(SAID), "stream": True}
        data = json.dumps(body).encode()
        with connect(talker) as connection:
            length = f"Content-Length: {len(data)}"
            connection.sendall(head(talker, f"POST {CHAT}", "Content-Type: application/json", length) + data)
            received = b""
            while len(received) < size and (part := connection.recv(size)):
                received += part
        assert [secret for secret in SECRETS if secret.encode() in received] == []
    time.sleep(0.5)
    assert talker.audit()[-1]["route"] == CHAT
