"""No file outside, no more than its share inside, no socket, no environment: each attack works without the sandbox."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.sandbox import Program, SandboxConfig, run_programs
from tasks.sandbox.worker import Means, Worker
from tests.tasks.sandbox.attacks import EVERYTHING, FILTERS, NAMESPACES, offered, without_sandbox

CONFIG = SandboxConfig(seconds=8, files_mb=4)


@pytest.fixture(params=[EVERYTHING, NAMESPACES, FILTERS], ids=["everything", "namespaces", "filters"])
def means(request: pytest.FixtureRequest) -> Means:
    return offered(request.param)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


def attempts(lines: list[str]) -> str:
    """Source that tries each line, whatever comes of the others."""
    return "import ctypes, os, shutil, socket, subprocess\n" + "".join(
        f"try:\n    {line}\nexcept Exception: pass\n" for line in lines
    )


def state_of(folder: Path) -> dict[str, object]:
    """All that can be seen of a folder's files."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[path.name] = (content, status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns)
    return found


WRITES = [
    "open({new!r}, 'w').write('x')",
    "open('../' * 20 + {new!r}[1:] + '2', 'w').write('x')",
    "os.symlink({folder!r}, 'link'); open('link/through', 'w').write('x')",
    "os.mkdir({new!r} + '3')",
    "os.mkfifo({new!r} + '4')",
    "open('own', 'w').write('x'); os.link('own', {new!r} + '5')",
    "open('mine', 'w').write('x'); os.rename('mine', {new!r} + '6')",
    "subprocess.run(['/bin/sh', '-c', 'echo x > ' + {new!r} + '7'])",
    "ctypes.CDLL(None).creat(({new!r} + '8').encode(), 0o644)",
]
CHANGES = [
    "open({old!r}, 'a').write('x')",
    "os.truncate({old!r}, 0)",
    "os.chmod({old!r}, 0o777)",
    "os.utime({old!r}, (1, 1))",
    "os.chown({old!r}, 1, 1)",
    "os.unlink({old!r})",
    "shutil.rmtree({folder!r})",
    "os.rename({old!r}, {old!r} + '9')",
]


@pytest.mark.soak_but("everything-written", "namespaces-changed")
@pytest.mark.parametrize("lines", [WRITES, CHANGES], ids=["written", "changed"])
def test_nothing_outside_is_written_changed_or_deleted(lines: list[str], means: Means, tmp_path: Path) -> None:
    folder = tmp_path / "outside"
    with Worker(CONFIG, means) as worker:
        for attempt in lines:
            folder.mkdir(exist_ok=True)
            (folder / "old").write_text("precious")
            before = state_of(folder)
            places = {"new": str(folder / "new"), "old": str(folder / "old"), "folder": str(folder)}
            source = attempts([attempt.format(**places)])
            assert worker.run(Program(source, "")).passed
            assert state_of(folder) == before, attempt
            without_sandbox(f"import os\nos.chdir({str(tmp_path)!r})\n{source}")
            if attempt != "os.chown({old!r}, 1, 1)" or os.geteuid() == 0:  # which only root may do
                assert not folder.exists() or state_of(folder) != before, f"{attempt} does no harm anyway"
            for name in ("link", "own", "mine"):
                (tmp_path / name).unlink(missing_ok=True)


def test_no_file_outside_is_read(means: Means, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    source = f"assert open({str(secret)!r}).read() == 'secret'"
    (outcome,) = run_programs([Program(source, "")], CONFIG, means=means)
    assert outcome.error in ("PermissionError", "FileNotFoundError")
    listing = f"import os; assert os.listdir({str(tmp_path)!r})"
    (outcome,) = run_programs([Program(listing, "")], CONFIG, means=means)
    assert outcome.error in ("PermissionError", "FileNotFoundError")
    assert [without_sandbox(one) for one in (source, listing)] == [0, 0]


def test_no_attribute_of_a_file_that_may_be_read_is_changed(means: Means) -> None:
    """FS_IOC_GETFLAGS and FS_IOC_SETFLAGS, which need no file that is open for writing; set to what they are."""
    flags = "import fcntl, os\nfile = os.open(os.__file__, os.O_RDONLY)\nflags = bytearray(8)\n"
    change = f"{flags}fcntl.ioctl(file, 0x80086601, flags)\nfcntl.ioctl(file, 0x40086602, bytes(flags))"
    (outcome,) = run_programs([Program(change, "")], CONFIG, means=means)
    assert outcome.error in ("PermissionError", "OSError")
    asked = f"{flags}assert not os.isatty(file)\nos.set_inheritable(file, True)\nos.set_blocking(file, True)"
    assert run_programs([Program(asked, "")], CONFIG, means=means)[0].passed
    if os.access(os.__file__, os.W_OK) and without_sandbox(f"{flags}fcntl.ioctl(file, 0x80086601, flags)") == 0:
        assert without_sandbox(change) == 0


@pytest.mark.soak_but("everything")
def test_its_own_folder_is_empty_bounded_and_gone_afterwards(means: Means) -> None:
    polite = "import os, tempfile\nassert os.listdir() == []\nopen('a', 'w').write('b')\nassert open('a').read() == 'b'"
    temporary = "with tempfile.TemporaryFile() as file: file.write(b'x')"
    copied = "import pathlib, shutil\npathlib.Path('a').touch()\nshutil.copy('a', 'c')"
    programs = [*[Program(polite, temporary)] * 2, Program(copied, "pathlib.Path('c').touch()")]
    assert all(outcome.passed for outcome in run_programs(programs, CONFIG, workers=1, means=means))
    one = "open('a', 'wb').write(bytes(8_000_000))"
    many = "import time\nfor i in range(20):\n    open(str(i), 'wb').write(bytes(1_000_000))\ntime.sleep(2)"
    hidden = "import os, time\nfor i in range(300):\n    os.mkdir('d'); os.chdir('d')\nos.close(os.open('x', 64, 0))"
    reserved = "import ctypes, os, time\nfile = os.open('a', os.O_CREAT | os.O_WRONLY)\n"
    reserved += "if ctypes.CDLL(None).fallocate(file, 1, ctypes.c_long(0), ctypes.c_long(10 ** 9)): raise OSError"
    deep = "import os, time\nfor i in range(20):\n    os.mkdir('d' * 250); os.chdir('d' * 250)\n"
    unreadable = "import os, time\nos.mkdir('d', 0o300); os.chdir('d')\n"
    fill = "for i in range(20):\n    with open(str(i), 'wb') as file: file.write(bytes(1_000_000))\ntime.sleep(2)"
    for source in (one, many, reserved, deep + fill, unreadable + fill):
        (outcome,) = run_programs([Program(source, "")], CONFIG, means=means)
        assert (outcome.state, outcome.error) == ("failed", "OSError"), outcome
    assert run_programs([Program(hidden, "")], CONFIG, means=means)[0].passed
    too_many = "import os, time\nfor i in range(4_200): os.mknod(str(i))\ntime.sleep(9)"
    (outcome,) = run_programs([Program(too_many, "")], CONFIG, means=means)
    assert (outcome.state, outcome.error) == ("failed", "OSError") or outcome.state == "timed out"


def test_pairs_of_sockets_work_and_have_small_buffers(means: Means) -> None:
    loop = "import asyncio\nasync def one(): return 1\nassert asyncio.run(one()) == 1"
    assert run_programs([Program(loop, "")], CONFIG, means=means)[0].passed
    if means.seccomp:
        larger = "import socket\na, _ = socket.socketpair()\na.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 ** 20)"
        assert run_programs([Program(larger, "")], CONFIG, means=means)[0].error == "PermissionError"
        assert without_sandbox(larger) == 0


def test_no_connection_and_no_packet_gets_out(means: Means) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        for listener in (tcp, udp):
            listener.settimeout(0.2)
        source = attempts(
            [
                f"socket.create_connection({tcp.getsockname()}, 1)",
                f"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'query', {udp.getsockname()})",
            ]
        )
        assert run_programs([Program(source, "")], CONFIG, means=means)[0].passed
        for receive in (tcp.accept, lambda: udp.recv(10)):
            with pytest.raises(TimeoutError):
                receive()
        without_sandbox(source)
        tcp.accept()[0].close()
        assert udp.recv(10) == b"query"


def test_no_name_is_looked_up_and_no_socket_of_the_machine_is_reached(means: Means, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as abstract:
        named.bind(path)
        abstract.bind("\0gristmill-test")
        for listener in (named, abstract):
            listener.listen()
            listener.settimeout(0.2)
        lookup = "import socket\ntry:\n    socket.getaddrinfo('example.org', 80)\nexcept OSError: pass\nelse: 1 / 0"
        unix = attempts([f"socket.socket(socket.AF_UNIX).connect({one!r})" for one in (path, "\0gristmill-test")])
        outcomes = run_programs([Program(lookup, ""), Program(unix, "")], CONFIG, means=means)
        assert [outcome.state for outcome in outcomes] == ["passed", "passed"]
        for listener in (named, abstract):
            with pytest.raises(TimeoutError):
                listener.accept()
        without_sandbox(unix)
        for listener in (named, abstract):
            listener.accept()[0].close()


def test_no_environment_can_be_read(means: Means, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_TEST_SECRET", "swordfish")
    own = "import os\nassert any('SECRET' in name for name in os.environ)"
    library = "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.getenv.restype = ctypes.c_char_p\n"
    library += "assert libc.getenv(b'GRISTMILL_TEST_SECRET')"
    others = "import glob\nfound = b''\nfor path in glob.glob('/proc/[0-9]*/environ') + ['/proc/self/environ']:\n"
    others += "    try: found += open(path, 'rb').read()\n    except OSError: pass\nassert b'PATH=' in found"
    programs = [Program(source, "") for source in (own, library, others)]
    for outcome in run_programs(programs, CONFIG, means=means):
        assert (outcome.state, outcome.error) == ("failed", "AssertionError")
    assert [without_sandbox(program.text) for program in programs] == [0, 0, 0]
