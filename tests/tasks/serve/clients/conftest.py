"""One server for the tests of this folder: a plain model with an adapter, one with tools, and two under one name."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from models.tokenizer import load_tokenizer
from tests.tasks.serve.real_server import HERMES, Server, make_release, release_of, serving

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CONTEXT = 8192  # an answer as long takes the engine seconds
SAID = " It lives in the wood, they say."  # again and again, by the model with tools
WORK = re.compile(r"^llamacpp:requests_(?:processing|deferred) (\d+)", re.M)
PRICES = {"usd_per_million_prompt": 1000.0, "usd_per_million_completion": 2000.0}


class Clients:
    """The server with the official clients of it. `folders` are the releases by the name of their model."""

    def __init__(self, server: Server, folders: dict[str, Path]) -> None:
        self.server, self.folders = server, folders

    @cached_property
    def openai(self) -> OpenAI:
        """OpenAI's client, which refuses an answer that isn't of its types."""
        return self.openai_with("none")

    def openai_with(self, key: str) -> OpenAI:
        """OpenAI's client with a key."""
        return OpenAI(base_url=f"{self.server.url}/v1", api_key=key, max_retries=0, _strict_response_validation=True)

    @cached_property
    def anthropic(self) -> Anthropic:
        """Anthropic's client, which refuses an answer that isn't of its types."""
        return self.anthropic_with("none")

    def anthropic_with(self, key: str) -> Anthropic:
        """Anthropic's client with a key."""
        return Anthropic(base_url=self.server.url, api_key=key, max_retries=0, _strict_response_validation=True)

    def _engines(self) -> list[tuple[int, dict[str, Any]]]:
        """The processes of the engines, with what each was started with."""
        shown = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
        rows = [line.split(None, 2) for line in shown.splitlines()[1:]]
        mine = [(int(pid), words) for pid, parent, words in rows if int(parent) == self.server.process.pid]
        return [(pid, json.loads(words[words.index("{") :])) for pid, words in mine if "llama_server {" in words]

    def kill_engine(self) -> None:
        """End the engine of the plain model and its adapter, which no program can catch."""
        (pid,) = (pid for pid, spec in self._engines() if spec["adapters"] and spec["slots"] > 1)
        os.kill(pid, signal.SIGKILL)

    def engine_running(self) -> int:
        """The requests in all engines, by their own counters."""
        running = 0
        for _, spec in self._engines():
            with httpx.Client(transport=httpx.HTTPTransport(uds=spec["socket"])) as engine:
                found = WORK.findall(engine.get("http://engine/metrics").text)
            assert len(found) == 2
            running += sum(map(int, found))
        return running

    def idle(self, within: float) -> bool:
        """Whether nothing runs in time, neither for the server nor in its engines."""
        deadline = time.monotonic() + within
        while self.server.metric("vllm:num_requests_running") or self.engine_running():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer, with the template of the plain model."""
        return load_tokenizer(self.folders["plain"])

    def tokens(self, text: str) -> int:
        """The tokens of a text, as a client counts them: special tokens in it are text."""
        return len(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def prompt_tokens(self, messages: list[dict[str, Any]]) -> int:
        """The tokens of a prompt, as a client counts them."""
        rendered = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        return len(rendered["input_ids"])

    def command(self, *words: str, status: int = 0) -> str:
        """The output of `gristmill serve …`, or its error."""
        command = [sys.executable, "-m", "flows.cli", "serve", *words]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
        assert done.returncode == status, done.stderr
        return done.stderr if status else done.stdout

    def key(self, name: str, *options: str) -> dict[str, Any]:
        """A new key."""
        made = self.command("keys", "make", name, *options, "--json", "--state", str(self.server.state))
        key: dict[str, Any] = json.loads(made)
        return key


def exactly(text: str) -> dict[str, str]:
    """Fields of a request that make a model say a text."""
    return {"grammar": f"root ::= {json.dumps(text)}"}


@pytest.fixture(scope="package")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    """The server, with prices."""
    from tasks.training.adapters.config import LoraConfig
    from tests.tasks.export.test_adapter import adapt

    folder = tmp_path_factory.mktemp("clients")
    plain = make_release(folder / "plain", kv_heads=2, context=CONTEXT)
    tools = make_release(folder / "tools", HERMES, SAID, kv_heads=2, context=CONTEXT)
    adapted = adapt(folder / "plain" / "model", folder / "adapted", LoraConfig(rank=4, alpha=12), 1)
    chain = {"base": folder / "plain" / "model", "sft": adapted / "adapter"}
    polite = release_of(folder / "polite", adapted / "model", {"formats": ["gguf-adapter"]}, chain)
    models = [
        {"release": str(plain), "name": "plain", "adapters": {"polite": str(polite)}, **PRICES},
        {"release": str(tools), "name": "tools", **PRICES},
        {"release": str(plain), "name": "both", "also": str(tools), "share": 0.5},
    ]
    settings = {
        "engine": {"slots": 4, "threads": 1, "context": CONTEXT},
        "models": models,
        "usd_per_hour": 3.6,
        "swap_seconds": 1.0,
        "requests": {"control_tokens": True},  # for a server in front of this one
    }
    with serving(plain, folder, settings) as server:
        yield Clients(server, {"plain": plain, "tools": tools, "polite": polite})
