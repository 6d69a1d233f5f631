"""`gristmill chat` in a pipe, with a running server, and with mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.commands.chat.printing import Printed
from flows.tables import Terminal
from storage.errors import STEERING as STEERING_CODES
from storage.store import Store
from tasks.download.pairs import instruction
from tests.flows.commands.chat.conftest import ENDLESS, SHOWN
from tests.flows.commands.test_cli import publish
from tests.tasks.serve.tiny_release import GGUF

ROOT = Path(__file__).parents[4]
SAID = f"{ENDLESS}{ENDLESS}\n"


def chat(*words: str, typed: str | bytes = "", **environment: str) -> subprocess.CompletedProcess[str]:
    data = typed.encode() if isinstance(typed, str) else typed
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "chat", *words],
        input=data,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
    )
    assert b"Traceback" not in done.stderr
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_one_answer_goes_to_stdout_and_nothing_else(store: str) -> None:
    done = chat("tiny@1", f"--store={store}", "--prompt=Where?")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{SHOWN}\n", "")


@pytest.mark.soak
def test_a_pipe_holds_a_conversation(store: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    done = chat("tiny@2", f"--store={store}", "--max-tokens=18", typed=f"Where?\nAnd the hen?\n/stats\n/save {file}")
    assert (done.returncode, done.stdout) == (0, SAID * 2)
    assert "All 2 answers: 36 tokens" in done.stderr
    row = json.loads(file.read_text())
    assert [turn["content"] for turn in instruction(row, "chat").pair["messages"][::2]] == ["Where?", "And the hen?"]


@pytest.mark.soak
def test_a_reader_that_leaves_ends_the_command(store: str) -> None:
    command = [sys.executable, "-m", "flows.cli", "chat", "tiny@2", f"--store={store}", "--prompt=Where?"]
    process = subprocess.Popen(
        [*command, "--max-tokens=2000"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(8) == ENDLESS[:8]
    process.stdout.close()
    assert process.wait(timeout=120) == 1
    assert process.stderr.read() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_as_in_a_shell(store: str, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "flows.cli", "chat", "tiny@2", f"--store={store}", "--prompt=Where?"]
    process = subprocess.Popen([*command, "--max-tokens=2000"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.read(8) == ENDLESS[:8]
    process.send_signal(number)
    process.stdout.read()
    assert process.wait(timeout=120) == 128 + number


def test_a_format_without_a_server_answers_as_a_whole(store: str) -> None:
    done = chat("tiny@2", f"--store={store}", "--format=safetensors", "--max-tokens=18", "--prompt=Where?")
    assert (done.returncode, done.stdout) == (0, SAID)


@pytest.mark.soak
def test_a_conversation_beyond_the_context_names_both_numbers(store: str) -> None:
    done = chat("tiny@1", f"--store={store}", f"--prompt={'fox ' * 200}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Error: The conversation has 2" in done.stderr
    assert "tokens, and the context is 128." in done.stderr


def test_a_store_without_a_release_names_the_command_that_makes_one(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    done = chat(f"--store={store.url}")
    assert f"`gristmill run PROFILE --store {store.url}` creates a store." in done.stderr
    publish(store, "pretrain", {"model/config.json": b"{}"})
    done = chat(f"--store={store.url}")
    assert done.returncode == 1
    assert f"Error: The store {store.url} has no release tiny/export." in done.stderr
    assert f"Make it: `gristmill run tiny --store {store.url}`" in done.stderr


@pytest.fixture(scope="module")
def server(store: str) -> Iterator[str]:
    """The address of llama.cpp's own server, which has OpenAI's API."""
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path = str(next(Path(store).glob(f"artifacts/export/*/{GGUF}")))
    params.n_parallel, params.port, params.verbosity, params.fit_params = 1, 0, -1, False
    params.api_keys = ["a-key-of-a-test"]
    running = Server(params)
    running.handle_metrics()
    yield running.listening_address
    del running


def test_a_server_is_asked_by_its_api(server: str) -> None:
    words = (f"--url={server}", "--prompt=Where?", "--max-tokens=18")
    done = chat(*words, "--key-env=CHAT_KEY", CHAT_KEY="a-key-of-a-test")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in (SAID, f"{SHOWN}\n")
    refused = chat(*words, "--model=any", "--key-env=CHAT_KEY", CHAT_KEY="another-key")
    assert refused.returncode == 1
    assert f"Error: The server {server} refuses the request" in refused.stderr
    assert "another-key" not in refused.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--url=http://127.0.0.1:1"], "The server http://127.0.0.1:1 failed: it doesn't answer"),
        (["--url=ftp://host"], "--url ftp://host is not the address of a server."),
        (["--url=http://127.0.0.1:1", "--key-env=CHAT_NOTHING"], "variable CHAT_NOTHING is not set."),
        (["--url=http://127.0.0.1:1", "--format=gguf-f16"], "--url talks to a server, not to a release."),
        (["--model=mine"], "--key-env and --model are about a server."),
    ],
)
def test_mistakes_with_a_server_are_one_sentence(words: list[str], told: str) -> None:
    done = chat(*words, "--prompt=hi")
    assert done.returncode == 1
    assert told in done.stderr


@pytest.mark.soak
def test_input_that_is_not_text_is_refused(store: str) -> None:
    done = chat("tiny@1", f"--store={store}", typed=b"\xff\xfe\n")
    assert done.returncode == 1
    assert "is not UTF-8." in done.stderr


@given(st.lists(st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(list(map(chr, STEERING_CODES)))))))
def test_any_cut_of_an_answer_prints_the_same(parts: list[str]) -> None:

    by_parts, whole = StringIO(), StringIO()
    for file, said in ((by_parts, parts), (whole, ["".join(parts)])):
        printed = Printed(Terminal(file=file))
        for part in said:
            printed.say(part)
    assert by_parts.getvalue() == whole.getvalue()
    assert not {*map(ord, by_parts.getvalue())} & STEERING_CODES.keys()
