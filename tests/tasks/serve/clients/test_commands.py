"""The commands for a running server: chat, audit, status, keys and swap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.flows.commands.chat.terminal import CTRL_D, Terminal
from tests.tasks.serve.clients.conftest import Clients

ASKED: list[Any] = [{"role": "user", "content": "Where does the fox live?"}]
pytestmark = pytest.mark.soak


def test_a_chat_offers_to_drop_turns_that_dont_fit(clients: Clients, tmp_path: Path) -> None:
    long = [{"role": "user", "content": "fox " * 4500}, {"role": "assistant", "content": "Yes."}]
    (tmp_path / "long.jsonl").write_text(json.dumps({"messages": [*long, *long]}) + "\n")
    with Terminal("chat", f"--url={clients.server.url}", "--model=plain", "--max-tokens=5") as chat:
        chat.expect(f"plain at {clients.server.url}")
        chat.line("Where?")
        chat.expect("Cut after 5 tokens.")
        chat.line(f"/load {tmp_path / 'long.jsonl'}")
        chat.line("And now?")
        chat.expect("and the context is 8,192.")
        chat.expect("Drop the oldest turns until it fits?")
        chat.press("y\r")
        chat.expect("1 of 2 earlier turns dropped")
        chat.expect("> ")
        chat.press(CTRL_D)
        assert chat.end() == 0


@pytest.mark.parametrize(
    ("options", "model", "said"),
    [
        (["--requests-per-minute", "1"], "plain", "The key has used 1 of its 1 requests a minute"),
        (["--model", "tools"], "plain", "This key may use tools, not plain."),
        ([], "other", "The model 'other' is not served."),
    ],
)
def test_a_chat_says_why_the_server_refuses(options: list[str], model: str, said: str, clients: Clients) -> None:
    key = clients.key(f"chatty {model} {len(options)} {options[:1]}", *options)["key"]
    clients.openai_with(key).models.list()
    command = [sys.executable, "-m", "flows.cli", "chat", "--url", clients.server.url, "--model", model]
    command += ["--key-env", "CHAT_KEY", "--prompt", "Where?", "--max-tokens", "2"]
    for _ in range(2):
        environment = {**os.environ, "CHAT_KEY": key, "COLUMNS": "200"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert f"Error: The server {clients.server.url} refuses the request: {said}" in done.stderr


def test_keys_are_obeyed_at_once(clients: Clients) -> None:
    state = ("--state", str(clients.server.state))
    made = clients.key("brief", "--model", "tools")
    client = clients.openai_with(made["key"])
    client.chat.completions.create(model="tools", messages=ASKED, max_tokens=1)
    with pytest.raises(openai.PermissionDeniedError, match="This key may use tools, not plain"):
        client.chat.completions.create(model="plain", messages=ASKED, max_tokens=1)
    assert made["id"] in clients.command("keys", "list", *state)
    assert "Revoked key" in clients.command("keys", "revoke", "brief", *state)
    with pytest.raises(openai.AuthenticationError, match="This key was revoked"):
        client.chat.completions.create(model="tools", messages=ASKED, max_tokens=1)
    listed = json.loads(clients.command("keys", "list", "--json", *state))
    row = next(row for row in listed if row["id"] == made["id"])
    assert (row["state"], row["limits"]["models"]) == ("revoked", ["tools"])


def test_the_audit_log_is_filtered(clients: Clients) -> None:
    state = ("--state", str(clients.server.state))
    made = clients.key("audited")
    answer = clients.openai_with(made["key"]).chat.completions.create(model="plain", messages=ASKED, max_tokens=3)
    identity = answer.id.removeprefix("chatcmpl-")
    said = clients.command("audit", "--key", made["id"], *state)
    assert identity in said
    assert "200  length" in said
    assert ASKED[0]["content"] not in clients.command("audit", "--id", identity, "--json", *state)
    assert clients.command("audit", "--key", made["id"], "--status", "4xx", *state) == ""


def test_the_status_is_shown(clients: Clients) -> None:
    client = clients.openai_with(clients.key("whoever")["key"])
    client.chat.completions.create(model="plain", messages=ASKED, max_tokens=3)
    shown = clients.command("status", clients.server.url)
    for words in ("whoever", "plain", "polite", "tools", "both", "time to first token", "× 200"):
        assert words in shown
    found = json.loads(clients.command("status", clients.server.url, "--json"))
    assert found["models"]["plain"]["ready"]
    assert found["models"]["plain"]["served_is_released"].startswith("proved as gguf-f16")


def test_a_swap_keeps_adapters_and_a_bad_one_changes_nothing(clients: Clients, tmp_path: Path) -> None:
    state = ("--model", "plain", "--state", str(clients.server.state))
    before = httpx.get(f"{clients.server.url}/v1/models").json()["data"]
    error = clients.command("swap", str(tmp_path), *state, status=1)
    assert "What to do:" in error
    assert "is served from" in clients.command("swap", str(clients.folders["plain"]), *state)
    after = httpx.get(f"{clients.server.url}/v1/models").json()["data"]
    for row in (*before, *after):
        del row["created"], row["proof"]
    assert after == before
    for model in ("plain", "polite"):
        clients.openai.chat.completions.create(model=model, messages=ASKED, max_tokens=3)
    assert clients.idle(within=5), "the old engine has ended"
