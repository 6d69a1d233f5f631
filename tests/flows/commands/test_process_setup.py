"""Set-up of a process: closed streams, a locale without Unicode, a missing folder, words that control a terminal,
impossible stores. Each is one sentence and a remedy, or has no effect, but is never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from flows.commands.process_setup import ask_this_machine_directly
from flows.server import check_address
from profiles.load import MOST_BYTES
from storage import refs
from storage.errors import ServerError
from storage.store import Store
from tests.flows.commands.test_cli import gristmill, publish
from tests.pipeline.runs import ROOT, mind_signals
from tests.tasks.download.file_server import Behaviour, serve_files

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}


def shell(words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A command as a shell starts it, `gristmill` in it being this checkout's."""
    command = words.replace("gristmill", f"{sys.executable} -m flows.cli")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment}
    return subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a store in it, of one artifact."""
    folder = tmp_path_factory.mktemp("edges")
    publish(Store(str(folder / "ü")), "dedup", {"documents/a": "ä".encode()})
    (folder / "file").write_text("text")
    return folder


@pytest.mark.soak_but("gristmill store ls --store ü >&--0", "gristmill profile schema <&- >&--0")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("gristmill store ls --store ü >&-", 0),
        ("gristmill store ls --store ü 2>&-", 0),
        ("gristmill store ls --store ü <&-", 0),
        ("gristmill store ls --store ü <&- >&- 2>&-", 0),
        ("gristmill store verify --store ü >&-", 0),
        ("gristmill profile schema <&- >&-", 0),
        ("gristmill runs --store ü >&-", 0),
        ("gristmill plan nobody >&-", 1),
        ("gristmill plan nobody <&- >&- 2>&-", 1),
    ],
)
def test_a_stream_that_is_closed_is_of_no_consequence(words: str, code: int, folder: Path) -> None:
    done = shell(words, folder)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.soak_but("gristmill store ls --store ü-0-dedup/")
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("gristmill store ls --store ü", 0, "dedup/"),
        ("gristmill store show tiny/dedup --store ü", 0, r"documents/\u2026a"),
        ("gristmill store ls --store ö", 1, r"No store exists at \xf6."),
        ("gristmill plan ‘x’", 1, r"Profile \u2018x\u2019 does not exist."),
        ("gristmill profile docs", 0, r"\u2026"),
        ("gristmill store --help", 0, "verify"),
    ],
)
def test_a_locale_without_unicode_reads_and_says_everything(words: str, code: int, told: str, folder: Path) -> None:
    done = shell(words, folder, **ASCII)
    assert (done.returncode, b"Traceback" in done.stderr) == (code, False), done.stderr
    assert told.encode() in done.stdout + done.stderr


def test_a_working_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    done = shell("mkdir gone; cd gone; rmdir ../gone; gristmill plan tiny", tmp_path)
    assert done.returncode == 1
    assert b"The working folder can't be used" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("steering", ["\x1b[31m", "\x07", "\x9b2J", "\u202e", "\r", "\x7f"])
@pytest.mark.parametrize(
    "words",
    [
        ["plan", "a{}b"],
        ["store", "show", "a{}b", "--store", "{store}"],
        ["store", "ls", "--store", "a{}b"],
        ["run", "tiny", "--set", "a{}b=1"],
        ["run", "tiny", "--set", "download.a{}b=1"],
        ["run", "tiny", "--to", "a{}b"],
        ["why", "a{}b"],
        ["runs", "show", "a{}b", "--store", "{store}"],
        ["release", "verify", "a{}b", "--unsigned"],
        ["explain", "a{}b"],
        ["a{}b"],
        ["plan", "tiny", "--a{}b"],
    ],
)
def test_what_steers_a_terminal_is_harmless_in_a_message(words: list[str], steering: str, folder: Path) -> None:
    given = [word.replace("{}", steering).replace("{store}", str(folder / "ü")) for word in words]
    done = gristmill(*given)
    assert done.returncode in (1, 2)
    assert steering not in done.stderr + done.stdout


@pytest.mark.parametrize(
    "words", [["ls"], ["ls", "--json"], ["show", "tiny/dedup"], ["lineage", "tiny/dedup"], ["verify"], ["gc"]]
)
def test_names_in_a_store_steer_no_terminal(words: list[str], tmp_path: Path) -> None:
    steering = "\x1b[31m"
    store = Store(str(tmp_path / "store"))
    location = publish(store, "dedup", {f"documents/{steering}": b"x"}, note=steering)
    refs.move(store, f"a{steering}/dedup", location, store.get(location).digest)
    (store.local / "work" / f"a{steering}-b").mkdir()
    (store.local / "refs" / f"{steering}.json").write_text("{")
    done = gristmill("store", *words, f"--store={store.root}")
    assert done.returncode == (words == ["verify"])
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("word", ["a\udcff", "--store=\ud800"])
def test_words_that_are_no_text_are_told(word: str) -> None:
    assert "is not UTF-8." in gristmill("store", "ls", word).stderr


@pytest.mark.parametrize("size", [MOST_BYTES + 1, 20_000_000])
def test_a_profile_of_megabytes_is_told_at_once(size: int, tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("name: large\n# " + "x" * size)
    done = gristmill("plan", str(path))
    assert (done.returncode, "bytes, more than 1,000,000" in " ".join(done.stderr.split())) == (1, True)


@pytest.mark.parametrize("place", ["/proc/x", "/sys/x", "/dev/null/x", "{folder}/file", "{folder}/file/x", "{folder}"])
def test_where_no_store_can_be_is_told_at_once(place: str, folder: Path) -> None:
    done = gristmill("run", "smoke", "--yes", "--to=download", f"--store={place.format(folder=folder)}")
    assert done.returncode == 1
    assert "What to do:" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_signal_disturbs_the_last_steps_of_a_command(number: signal.Signals) -> None:
    """As a second Ctrl-C did while helpers ended: the process ended by the signal itself, with a traceback."""
    code = (
        "import atexit, sys, time; from flows.cli import main; sys.argv = ['gristmill', '--version']; "
        "atexit.register(lambda: (print('last steps', flush=True), time.sleep(0.5))); main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=mind_signals,
    ) as process:
        assert process.stdout is not None
        while "last steps" not in process.stdout.readline():
            assert process.poll() is None
        for _ in range(3):
            process.send_signal(number)
        _, complained = process.communicate(timeout=60)
    assert (process.returncode, complained) == (0, "")


def test_a_proxy_is_not_asked_for_what_is_on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    ask_this_machine_directly()
    assert "NO_PROXY" not in os.environ
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    ask_this_machine_directly()
    with serve_files(Behaviour({"a": b"1"})) as url:
        assert httpx.get(f"{url}/a").content == b"1"
    monkeypatch.setenv("no_proxy", "example.org")
    ask_this_machine_directly()
    assert os.environ["no_proxy"] == "example.org,127.0.0.1,localhost"
    monkeypatch.setenv("ALL_PROXY", "gopher://127.0.0.1:9")
    with pytest.raises(ServerError, match="A proxy of the environment can't be used: Unknown scheme"):
        check_address()
