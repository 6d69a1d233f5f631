"""Whatever is sent, the answer is one sentence, the server lives, and others don't notice."""

from __future__ import annotations

import copy
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.serve.hostile.raw import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    answered_or_refused,
    bystander,
    connect,
    cpu_seconds,
    head,
    host,
    is_unharmed,
    memory,
    posted,
    refused,
    sent,
    statuses,
)
from tests.tasks.serve.real_server import Server, serving

JSON = "Content-Type: application/json"
SECRET = "the badger sleeps under platform nine"
READ_SECONDS = 1.5
SETTINGS = {"requests": {"read_seconds": READ_SECONDS, "write_seconds": 2, "queue": 32, "max_tokens": 64}}
GROWTH = 60e6  # bytes that the server may grow by: caches, and what the allocator keeps


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A state folder with a key."""
    folder = tmp_path_factory.mktemp("hostile")
    command = [sys.executable, "-m", "flows.cli", "serve", "keys", "make", "good", "--state", str(folder / "state")]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"gsk-\w{8}-\w{43}", made.stdout)
    assert found is not None
    return folder, found[0]


@pytest.fixture(scope="module")
def attacked(release: Path, key: tuple[Path, str]) -> Iterator[Server]:
    """A server whose patience is short."""
    with serving(release, key[0], SETTINGS) as running:
        posted(running, CHAT, asked(grammar='root ::= "a"'))  # starts what grammars need
        yield running


@pytest.fixture(autouse=True)
def _nobody_is_harmed(attacked: Server, key: tuple[Path, str]) -> Iterator[None]:
    """A well-behaved client beside each attack is answered in time, and its texts stay its own."""
    engines = attacked.engines()[:1]
    with bystander(attacked, key[1], SECRET):
        yield
    is_unharmed(attacked, engines, [SECRET, key[1]])


def asked(text: str = "Where?", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields}


def in_parallel(work: Callable[[Any], bytes], cases: list[Any], workers: int = 8) -> list[bytes]:
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, cases))


def test_what_is_not_http_is_refused(attacked: Server) -> None:
    post, named = f"POST {CHAT}", host(attacked)
    chunked = "Transfer-Encoding: chunked"
    one = f"GET /health HTTP/1.1\r\n{named}"
    for said in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # a client of TLS
        b"\x05\x01\x00\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"\r\n" * 5000 + b"x\r\n\r\n",
        f"GET / HTTP/1.1\r\n{named}X: a\0b\r\n\r\n".encode(),
        f"GET /\0 HTTP/1.1\r\n{named}\r\n".encode(),
        f"GET /\xe9 HTTP/1.1\r\n{named}\r\n".encode("latin-1"),
        f"{one}X : a\r\n\r\n".encode(),
        f"{one}: a\r\n\r\n".encode(),
        f"{one}Host: evil\r\n\r\n".encode(),
        b"GET /health HTTP/1.1\r\n\r\n",
        head(attacked, post, JSON, "Content-Length: 2", "Content-Length: 3") + b"{}",
        head(attacked, post, JSON, "Content-Length: -2") + b"{}",
        head(attacked, post, JSON, "Content-Length: 2, 3") + b"{}",
        head(attacked, post, JSON, f"Content-Length: {'9' * 5000}") + b"{}",
        head(attacked, post, JSON, "Transfer-Encoding: gzip") + b"{}",
        head(attacked, post, JSON, "Transfer-Encoding: chunked, chunked") + b"{}",
        head(attacked, post, JSON, chunked) + b"zz\r\n{}\r\n0\r\n\r\n",
        head(attacked, post, JSON, chunked) + b"2\r\n{}zz",
        head(attacked, post, JSON, chunked) + b"f" * 400 + b"\r\n",
        f"{one}{'X: ' + 'a' * 70_000}".encode(),
        f"{one}".encode() + b"X: a\r\n" * 20_000,
    ):
        answer = sent(attacked, said)
        assert statuses(answer) == [400], (said[:100], answer)
        assert refused(answer)


def test_a_head_may_try_tricks(attacked: Server) -> None:
    post = f"POST {CHAT}"
    body = json.dumps(asked()).encode()
    length = f"Content-Length: {len(body)}"
    smuggled = b"0\r\n\r\nGET /status.json HTTP/1.1\r\nHost: evil\r\n\r\n"
    answer = sent(attacked, head(attacked, post, JSON, length, "Transfer-Encoding: chunked") + smuggled)
    assert len(statuses(answer)) == 1, "what follows the chunks is no request on a connection that closes"
    for name, status in (("evil", 421), ("127.0.0.1.evil", 421), ("[::1", 421), ("a" * 9000, 421), ("localhost", 200)):
        said = f"GET /v1/models HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
        assert statuses(sent(attacked, said.encode())) == [status]
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil:80", "\xff", "file://"):
        assert "may not call" in refused(sent(attacked, head(attacked, post, JSON, length, f"Origin: {origin}") + body))
    for wrong in ("a b", 'a"b', "a" * 65, "\xe9" * 9, "../../etc", "<script>", "%0d%0aX:1", "short"):
        answer = sent(attacked, head(attacked, post, JSON, length, f"X-Request-Id: {wrong}") + body)
        shown = re.search(rb"\r\nx-request-id: ([^\r]*)\r\n", answer)
        assert shown is not None
        assert re.fullmatch(rb"[0-9a-f]{24}", shown[1]), "an id of the server's own"
    for header in (
        "Authorization: Bearer \xff\xfe",
        "Authorization: Basic YTpi",
        f"Authorization: Bearer {'a' * 60_000}",
        f"Cookie: {'a=b; ' * 9000}",
        "Forwarded: for=1.2.3.4",
        "X-Forwarded-For: 1.2.3.4",
        "traceparent: 00-zz",
        "Expect: 100-continue",
        "Expect: 200-ok",
        "Upgrade: websocket\r\nConnection: upgrade",
        "Content-Encoding: gzip",
        "Accept: \x7f",
        "Range: bytes=0-1",
        "X-HTTP-Method-Override: DELETE",
    ):
        answered_or_refused(sent(attacked, head(attacked, post, JSON, length, header) + body))


def test_wrong_paths_and_methods_are_refused(attacked: Server) -> None:
    for path in (
        *("/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/pages/..%2f..%2fapp.py", "//evil", "/%00", "/%ff%fe", "/\\"),
        *("/v1/models/..%2f..", f"/v1/models/{'a' * 60_000}", "/v1/models/%0d%0aX:%20y", "/v1/models/%F0%9F%92%A9"),
        *("/v1/models/<script>", "/health/", "/v1", "/.env", "/admin", "*", "http://evil/health", "/?a=%00"),
    ):
        answer = sent(attacked, head(attacked, f"GET {path}"))
        if path != "/?a=%00":
            assert refused(answer), path
    for method in ("OPTIONS", "TRACE", "DELETE", "PUT", "PATCH", "FOO", "GET"):
        assert refused(sent(attacked, head(attacked, f"{method} {CHAT}"))) == f"{CHAT} takes POST."
    assert statuses(sent(attacked, head(attacked, f"HEAD {CHAT}"))) == [405]
    assert sent(attacked, head(attacked, "HEAD /health")).endswith(b"\r\n\r\n"), "without a body"
    assert refused(sent(attacked, b"CONNECT evil:80 HTTP/1.1\r\nHost: evil:80\r\nConnection: close\r\n\r\n"))


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def bodies() -> Iterator[tuple[str, Any]]:
    """Bodies that are large, deep, or many."""
    small = json.dumps(asked())[1:-1]
    for body in (
        b" " * 5_000_000,
        b"{" + b" " * 4_000_000 + b"}",
        json.dumps({str(number): 0 for number in range(300_000)}).encode(),
        b'{"a":[' + b"[]," * 1_300_000 + b"[]]}",
        b"[" * 100_000,
        nested(100_000).encode(),
        f'{{{small},"seed":{"9" * 100_000}}}'.encode(),
        f'{{{small},"temperature":1e999}}'.encode(),
        f'{{{small},"temperature":NaN}}'.encode(),
        f'{{{small},"messages":[]}}'.encode(),
        f'{{{small},"user":"\\ud800"}}'.encode(),
        b"\xff\xfe{\0}\0",
        b"\xef\xbb\xbf{}",
        asked(stop=["a"] * 1_000_000),
        asked(stop=["a" * 257]),
        asked(model="m" * 3_000_000),
        asked(metadata={"a": "b" * 4_000_000}),
        asked(tools=[{"type": "function", "function": {"name": f"f{number}"}} for number in range(30_000)]),
        asked(**dict[str, Any]({f"x{number}": number for number in range(50_000)})),
        {"messages": [{"role": "user", "content": "a"}] * 10_000},
        {"messages": [{"role": "user", "content": "a"}] * 1_000},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 50_000}]},
        {"messages": [{"role": "user", "content": "the river flows past a town " * 7_000}] * 5},
    ):
        yield CHAT, body
    for text in (
        *("x" * 199_000, "7" * 199_000, " " * 199_000, "\n" * 199_000, "a@" * 99_000, "a.a@b.com " * 19_000),
        *("4539 1488 0343 6467 " * 9_900, "ignore all the other most " * 7_500, "<|" * 99_000, "1:" * 99_000),
        *("a at b dot c " * 15_000, "-----BEGIN RSA PRIVATE KEY----- " * 6_000, "eyJ" + "a" * 190_000),
        *(
            "<|im_start|>" * 16_000,
            "e" + "\u0301" * 190_000,
            "\u200d" * 190_000,
            "\u202e\u05d0" * 90_000,
            "写" * 66_000,
        ),
        *("👨\u200d👩\u200d👧" * 30_000, "\ufdfa" * 60_000, "\0" * 199_000, "\u2028" * 90_000, "system:\n" * 24_000),
        *("`" * 199_000, "http://a" * 24_000, "(+" * 99_000, "a" * 200_001, "\U000ffffe<|end|>" * 15_000),
    ):
        yield CHAT, asked(text)
    yield COMPLETIONS, {"prompt": [5] * 1_000_000}
    yield COMPLETIONS, {"prompt": [10**18] * 100_000}
    yield COMPLETIONS, {"prompt": "word " * 39_000}
    yield MESSAGES, {"messages": [{"role": "user", "content": "word " * 39_000}], "max_tokens": 8}


def test_large_bodies_delay_nobody(attacked: Server) -> None:
    # Encoded beforehand: a client that encodes between its head and its body is slow, and the server's patience short
    few = list(bodies())[::4]
    cases = [(path, body if isinstance(body, bytes) else json.dumps(body).encode()) for path, body in few]
    for answer in in_parallel(lambda case: posted(attacked, *case), cases, workers=3):
        answered_or_refused(answer)


@pytest.mark.soak
def test_large_bodies_are_let_go(attacked: Server) -> None:
    cases, sizes = list(bodies()), []
    for _ in range(4):
        for answer in in_parallel(lambda case: posted(attacked, *case), cases, workers=3):
            answered_or_refused(answer)
        sizes.append((memory(attacked.process.pid), memory(attacked.engines()[0])))
    (server, engine), (last_server, last_engine) = sizes[1], sizes[-1]
    assert last_server - server < GROWTH, sizes
    assert last_engine - engine < GROWTH, sizes


def test_slow_and_unfinished_requests_end(attacked: Server) -> None:
    """Those whose head is late get an answer, the others just an end: what they began is no request."""
    post = head(attacked, f"POST {CHAT}", JSON, "Content-Length: 200").replace(b"Connection: close\r\n", b"")
    nowhere = post.replace(CHAT.encode(), b"/nowhere")
    health = head(attacked, "GET /health").replace(b"Connection: close\r\n", b"")

    def drip(case: tuple[bytes, bytes, bytes]) -> bytes:
        """Send a part at once, then a byte every tenth of a second, and see when the server ends it."""
        first, dripped, expected = case
        received, began = bytearray(), time.monotonic()
        with connect(attacked, 0.1) as connection:
            connection.sendall(first)
            while time.monotonic() - began < 5 * READ_SECONDS:
                try:
                    connection.sendall(dripped)
                    data = connection.recv(1 << 16)
                    if not data:
                        break
                    received += data
                except TimeoutError:
                    continue
                except OSError:
                    break
            else:
                raise AssertionError(f"it still waits for the rest of {first!r}")
        assert expected in received, (first, received)
        return bytes(received)

    in_parallel(
        drip,
        [
            (b"", b"", b""),
            (b"GET", b"", b"HTTP/1.1 408"),
            (b"GET / HTTP/1.1\r\nX: ", b"a", b"HTTP/1.1 408"),
            (b"G", b"E", b"HTTP/1.1 408"),
            (health, b"", b"200 OK"),
            (health + b"GET", b"", b"HTTP/1.1 408"),
            (health + b"GET / HTTP/1.1\r\nX: ", b"a", b"HTTP/1.1 408"),
            (post, b"", b"HTTP/1.1 408"),
            (post, b"a", b"HTTP/1.1 408"),
            (nowhere, b"", b"HTTP/1.1 404"),
            (nowhere, b"a", b"HTTP/1.1 404"),
            (nowhere.replace(b"Content-Length: 200", b"Transfer-Encoding: chunked"), b"1\r\na\r\n", b"HTTP/1.1 404"),
        ],
        workers=12,
    )
    late = head(attacked, "POST /nowhere", JSON, "Transfer-Encoding: chunked")
    assert statuses(sent(attacked, late, b"zz\r\n", pause=0.2)) == [404], "a broken chunk after the answer"


def test_many_connections_that_say_nothing_leave_room(attacked: Server) -> None:
    silent = [connect(attacked) for _ in range(400)]
    for connection in silent[::2]:
        connection.sendall(b"POST / HTTP/1.1\r\n")
    assert statuses(posted(attacked, CHAT, asked())) == [200]
    for connection in silent:
        connection.close()


def test_pipelined_requests_are_answered_in_order(attacked: Server) -> None:
    one = head(attacked, "GET /health").replace(b"Connection: close\r\n", b"")
    answer = sent(attacked, one * 200, head(attacked, "GET /nowhere"))
    assert statuses(answer) == [200] * 200 + [404]


def ask_for_ever(connection: socket.socket, data: bytes) -> None:
    """Send, and read nothing. Raises OSError once the server closes."""
    began = time.monotonic()
    while time.monotonic() - began < 20:
        try:
            connection.sendall(data)
        except TimeoutError:
            time.sleep(0.1)


def test_who_asks_for_much_and_reads_nothing_is_cut_off(attacked: Server) -> None:
    one = head(attacked, "GET /openapi.json").replace(b"Connection: close\r\n", b"")
    before = memory(attacked.process.pid)
    with connect(attacked, 0.2) as connection, pytest.raises(OSError, match=r"reset|pipe"):
        ask_for_ever(connection, one * 50)
    assert memory(attacked.process.pid) - before < GROWTH


def test_wrong_keys_by_the_thousand(attacked: Server, key: tuple[Path, str]) -> None:
    right = key[1]
    guessed = random.Random(1)
    signs = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

    def wrong(number: int) -> str:
        secret = "".join(guessed.choices(signs, k=43))
        if number % 40 == 0:
            return f"{right[:13]}{secret}"  # a right id
        return f"gsk-{''.join(guessed.choices(signs, k=8))}-{secret}" if number % 3 else f"gsk-{number}\xff"

    keys = [wrong(number) for number in range(1000)]
    for answer in in_parallel(lambda one: posted(attacked, CHAT, asked(), f"X-Api-Key: {one}"), keys):
        assert "key" in refused(answer)
        assert statuses(answer)[0] in (401, 429)


ENDLESS = 'root ::= a\na ::= "a" a "y" | "a" a "z" | "a"'
GRAMMARS = (
    'root ::= ("a" | "a")*',
    "root ::= root",
    "root ::= " + "(" * 30_000 + ")" * 30_000,
    'root ::= "a"{1000000000}',
    'root ::= ((("a"{1,99}){1,99}){1,99}){1,99}',
    'root ::= ("a"*)*',
    "root ::= <[5]>",
    'root ::= "' + "a" * 65_000 + '"',
    f"root ::= [{''.join(map(chr, range(0x4E00, 0x4E00 + 20_000)))}]*",
    "root ::= [^\\x00-\\U0010FFFF]",
    'root ::= "\\uD800"',
    'root ::= "\0"',
    "%llguidance {}\nstart: /(a|aa)+/",
    "",
    " ",
)
SLOW = ('root ::= "a"{5,2}', "root ::= " + '"a"? ' * 5000, ENDLESS)  # seconds each
SCHEMAS: tuple[Any, ...] = (
    {"type": "array", "items": {"type": "string"}, "minItems": 10**9},
    {"$ref": "#/$defs/0", "$defs": {str(n): {"items": {"$ref": f"#/$defs/{n + 1}"}} for n in range(1400)}},
    {"patternProperties": {f"^a{{{n}}}(b|c)*$": {"type": "string"} for n in range(300)}},
    {"type": "string", "pattern": "("},
    {"type": "string", "pattern": "(" * 20_000},
    {"type": "string", "pattern": "((a{1,500}){1,500}){1,500}"},
    {"type": "object", "properties": {f"p{number}": {} for number in range(3000)}},
    {"$ref": "https://127.0.0.1:9/schema"},
    {"$ref": "file:///etc/passwd"},
    {"$ref": "#/nowhere"},
    {"allOf": [{"$ref": "#"}]},
    {"anyOf": []},
    {"type": 5},
    {"not": {}},
    {"enum": []},
    {"anyOf": [{"type": "array", "items": {"$ref": "#"}}] * 2},
)


def test_grammars_and_schemas_end_nothing_and_delay_nobody(attacked: Server) -> None:
    for schema in SCHEMAS:
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        answered_or_refused(posted(attacked, CHAT, asked(response_format=wanted)))
    for grammar in GRAMMARS:
        body = asked(grammar=grammar, max_tokens=60, temperature=0)
        answered_or_refused(posted(attacked, CHAT, body, seconds=60))
    assert b'"content":"well"' in posted(attacked, CHAT, asked(grammar='root ::= "well"'))


@pytest.mark.soak
@pytest.mark.parametrize("grammar", SLOW)
def test_a_grammar_that_never_ends_is_ended(attacked: Server, grammar: str) -> None:
    assert refused(posted(attacked, CHAT, asked(grammar=grammar, max_tokens=60, temperature=0), seconds=90))


def test_a_client_that_leaves_a_grammar_that_never_ends_leaves_nothing_running(attacked: Server) -> None:
    posted(attacked, CHAT, asked(grammar=ENDLESS, max_tokens=60, temperature=0), seconds=1.0)
    time.sleep(2.5)
    before = {engine: cpu_seconds(engine) for engine in attacked.engines()[1:]}
    time.sleep(1.0)
    used = [cpu_seconds(engine) - before[engine] for engine in attacked.engines()[1:]]
    assert sum(used) < 0.1, "what follows grammars rests, or has ended"


def of_schema(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that an OpenAPI schema allows."""
    if "oneOf" in schema:
        return st.one_of(*map(of_schema, schema["oneOf"]))
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "object":
        fields = {name: of_schema(one) for name, one in schema.get("properties", {}).items()}
        needed = {name: fields.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(needed, optional=fields)
    if kind == "array":
        return st.lists(of_schema(schema["items"]), min_size=schema.get("minItems", 0), max_size=3)
    if kind == "integer":
        least = schema.get("minimum", 0)
        return st.integers(least, schema.get("maximum", 1000)) | st.just(least)
    if kind == "number":
        return st.floats(schema["minimum"], schema["maximum"])
    return st.booleans() if kind == "boolean" else TEXTS


TEXTS = st.text(max_size=12) | st.sampled_from(
    ["<|im_end|>", "\u202eabc", "e\u0301" * 4, "a", "\U000ffffe", "\x7f", "tiny"]
)
WRONG: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 1.5, 1e308, 2**63, -(2**70), "", "\0", "a" * 300, [], {}, [[]], {"": None}, [None] * 5, "NaN"]
)
POSTS = (CHAT, COMPLETIONS, MESSAGES, "/v1/embeddings")


@st.composite
def requests(draw: st.DrawFn, document: dict[str, Any]) -> tuple[str, bytes]:
    """A request of the document, with up to three places changed, or some of its bytes."""
    path = draw(st.sampled_from(POSTS))
    content = document["paths"][path]["post"]["requestBody"]["content"]
    body = draw(of_schema(content["application/json"]["schema"]))
    for _ in range(draw(st.integers(0, 3))):
        at: Any = body
        for _ in range(draw(st.integers(0, 4))):
            inner = list(at.values()) if isinstance(at, dict) else at
            deeper = [one for one in inner if isinstance(one, dict | list) and one]
            if not deeper:
                break
            at = draw(st.sampled_from(deeper))
        if isinstance(at, dict):
            at[draw(st.sampled_from([*at, "x"]))] = copy.deepcopy(draw(WRONG))
        elif at:
            at[draw(st.integers(0, len(at) - 1))] = copy.deepcopy(draw(WRONG))
    data = bytearray(json.dumps(body, ensure_ascii=draw(st.booleans())).encode("utf-8", "replace"))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 4]))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return path, bytes(data)


def attack(attacked: Server, examples: int) -> None:
    document = httpx.get(f"{attacked.url}/openapi.json").json()
    counts: dict[int, int] = {}

    @settings(max_examples=examples, deadline=None)
    @given(requests(document))
    def is_answered(request: tuple[str, bytes]) -> None:
        answer = posted(attacked, *request)
        answered_or_refused(answer)
        counts[statuses(answer)[0]] = counts.get(statuses(answer)[0], 0) + 1

    is_answered()
    assert counts[200] > examples / 20, counts
    assert counts[400] > examples / 20, counts


def test_requests_of_the_document_and_mutants_of_them(attacked: Server) -> None:
    attack(attacked, 150)


@pytest.mark.soak
def test_two_thousand_hostile_requests(attacked: Server) -> None:
    attack(attacked, 300)
    before = memory(attacked.process.pid), len(attacked.lines)
    threads = [threading.Thread(target=attack, args=(attacked, 850)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory(attacked.process.pid) - before[0] < GROWTH
