"""A release with virtual tokens on a real server, which serves it by transformers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.kernels.virtual_tokens import FOLDER, VALUES, WEIGHTS
from models.runtimes.transformers import TransformersRuntime
from models.tokenizer import text_ids, token_text
from storage.digests import file_digest
from storage.errors import ServerError
from storage.manifest import SUMS
from tasks.export.release import open_release
from tasks.serve.control import command
from tasks.serve.engines.transformers.worker import PART
from tests.tasks.posttrain.test_virtual_tokens import TOKENS, drawn
from tests.tasks.serve.real_server import Server, release_of, serving
from tests.tasks.tiny_model import make_model, speaking, texts

CONTEXT = 1024
MESSAGES = [{"role": "user", "content": "Where does the fox live?"}]
SETTINGS = {"engine": {"slots": 4, "threads": 1}, "swap_seconds": 0.1}


@dataclass
class Served:
    """The server, and the release's runtime as `gristmill chat` opens it."""

    server: Server
    runtime: TransformersRuntime
    folder: Path

    def ask(self, **fields: Any) -> httpx.Response:
        asked = {"messages": MESSAGES, "temperature": 0, "max_tokens": 24, **fields}
        return httpx.post(f"{self.server.url}/v1/chat/completions", json=asked, timeout=60)

    def complete(self, **fields: Any) -> httpx.Response:
        return httpx.post(f"{self.server.url}/v1/completions", json={"max_tokens": 1, **fields}, timeout=60)

    def running(self) -> int:
        """The requests that the engine works on, by its own count."""
        (pid,) = self.server.engines()
        (path,) = re.findall(r'"socket": "([^"]+)"', Path(f"/proc/{pid}/cmdline").read_text())
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(path)
            asking.sendall(b'{"running": true}\n')
            count: int = json.loads(asking.makefile().readline())["running"]
        return count


@pytest.fixture(scope="module")
def served(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that llama.cpp's release was swapped on."""
    folder = tmp_path_factory.mktemp("prefix")
    base = speaking(make_model(folder / "base", context=CONTEXT))
    prefix = release_of(folder, drawn("prefix", base, folder / "sft") / "model", {"formats": ["safetensors"]})
    with serving(release, folder, SETTINGS) as server:
        before = server.lines[:]
        *_, last = command(server.state, command="swap", release=str(prefix))
        assert last["done"]["model"] == "tiny"
        assert any("Starting llama.cpp" in line for line in before)
        runtime = open_release(prefix)
        assert isinstance(runtime, TransformersRuntime)
        yield Served(server, runtime, prefix)


def within(seconds: float, holds: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"not within {seconds:g} s"
        time.sleep(0.05)


def test_it_answers_what_chat_does_and_proves_it(served: Served) -> None:
    runtime, server = served.runtime, served.server
    answer = served.ask(logprobs=True, top_logprobs=2).json()["choices"][0]
    expected = runtime.greedy(runtime.chat_ids(MESSAGES), 24)
    assert answer["message"]["content"].strip() == runtime.chat(MESSAGES, 24)
    assert [one["token"] for one in answer["logprobs"]["content"]] == [runtime.decode([id]) for id in expected]
    likely = float(runtime.chat_log_probabilities(MESSAGES)[expected[0]])
    assert answer["logprobs"]["content"][0]["logprob"] == pytest.approx(likely, abs=1e-5)

    (model,) = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert model["context"] == CONTEXT - TOKENS
    assert any("Starting transformers with" in line for line in server.lines)
    assert any("proved as safetensors" in line for line in server.lines)
    assert httpx.get(f"{server.url}/ready").status_code == 200
    assert server.metric("vllm:generation_tokens_total") > 0


def test_others_are_not_served_in_their_place(served: Served, tmp_path: Path) -> None:
    copy = shutil.copytree(served.folder, tmp_path / "release")
    weights, sums = copy / FOLDER / WEIGHTS, copy / SUMS
    digest = file_digest(weights)
    save_file({VALUES: np.zeros_like(load_file(weights)[VALUES])}, weights)
    sums.write_text(sums.read_text().replace(digest, file_digest(weights)))
    with pytest.raises(ServerError, match="The engine doesn't serve the released safetensors"):
        list(command(served.server.state, command="swap", release=str(copy)))


def test_what_it_cannot_follow_is_refused_by_name(served: Served) -> None:
    for form in ({"grammar": 'root ::= "a"'}, {"response_format": {"type": "json_object"}}):
        refused = served.ask(**form)
        assert refused.status_code == 400
        assert re.search("transformers, which takes no (grammar|json schema)", refused.text)


@pytest.mark.parametrize("count", [0, 3])
def test_a_prompt_is_told_token_by_token_in_the_form_of_vllm(count: int, served: Served) -> None:
    runtime = served.runtime
    ids = text_ids(runtime.tokenizer, "A ☃ é 🦊. " + "".join(texts()))[: 2 * PART + 40]
    assert len(ids) > 2 * PART
    response = served.complete(prompt=ids, prompt_logprobs=count)
    assert response.status_code == 200, response.text
    answer = response.json()
    ((first, *told),) = (one["prompt_logprobs"] for one in answer["choices"])
    assert (first, len(told), answer["usage"]["prompt_tokens"]) == (None, len(ids) - 1, len(ids))
    for id, entries, log_V in zip(ids[1:], told, runtime.all_log_probabilities(ids), strict=False):
        likeliest = np.argsort(-log_V, kind="stable")[:count].tolist()
        assert [int(one) for one in entries] == list(dict.fromkeys([id, *likeliest]))
        for one, entry in entries.items():
            assert entry["logprob"] == pytest.approx(float(log_V[int(one)]), abs=1e-4)
            assert entry["rank"] == 1 + int((log_V > log_V[int(one)]).sum())
            assert entry["decoded_token"] == token_text(runtime.tokenizer, int(one))
    name = response.headers["x-request-id"]
    within(10, lambda: name in [line["id"] for line in served.server.audit()])
    line = next(line for line in served.server.audit() if line["id"] == name)
    assert (line["prompt_tokens"], line["status"]) == (len(ids), 200), "it is booked and audited as any other"


def test_a_prompt_is_not_told_of_without_need_or_bound(served: Served, server: Server) -> None:
    assert "prompt_logprobs" not in served.complete(prompt=[20, 21]).json()["choices"][0]
    refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": [20, 21], "prompt_logprobs": 1})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "llama.cpp gives no prompt_logprobs of tiny."


def test_a_killed_engine_is_told_of_and_comes_back(served: Served) -> None:
    right, (killed,) = served.ask().json()["choices"], served.server.engines()
    asked = {"messages": MESSAGES, "temperature": 0, "stream": True}
    with httpx.stream("POST", f"{served.server.url}/v1/chat/completions", json=asked, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(killed, signal.SIGKILL)
        assert '"message":"The engine failed. Try again soon."' in "".join(lines)
    within(60, lambda: served.server.engines() not in ([], [killed]))
    within(60, lambda: httpx.get(f"{served.server.url}/ready").status_code == 200)
    assert served.ask().json()["choices"] == right


def test_an_answer_stops_within_a_second_of_its_client_leaving(served: Served) -> None:
    asked = {"messages": MESSAGES, "temperature": 0, "stream": True, "n": 3}
    with httpx.stream("POST", f"{served.server.url}/v1/chat/completions", json=asked, timeout=60) as answer:
        lines = answer.iter_lines()  # the connection closes with it
        next(lines)
        assert served.running() == 3
    within(1, lambda: served.running() == 0)
