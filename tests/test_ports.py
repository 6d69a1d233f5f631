"""SECURITY.md's table of ports: what opens one is in it, and listens where it says."""

from __future__ import annotations

import ast
import ipaddress
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

import pytest

from tasks.children.launchers import training_command
from tasks.children.reap_orphans import descendants
from tasks.evaluate.votes.server import VoteServer
from tests.flows.running_ui import served
from tests.runtimes import runtime_of
from tests.tasks.evaluate.votes.test_votes import ballot_of, make_compared
from tests.test_house import FILES, ROOT

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition("## Ports\n")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")][2:]
# Calls that open a port, or have a library do so; `CommonParams` are of llama.cpp's server
OPENS = re.compile(
    r"(?:socket\.)?create_server|\w+\.bind|(?:asyncio\.)?start_server|uvicorn\.run|(?:Threading)?HTTPServer|TCPStore"
    r"|CommonParams|.*\.LocalCluster|_ray\(\)\.init|\w+\.listen"
)
ELSEWHERE = ("tests", "benchmarks")


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def opens(path: Path) -> bool:
    """Whether a module opens a port: by a call, or by a class that is a server."""
    tree = ast.parse(path.read_text())
    bases = [base for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases]
    called = [call.func for call in calls(path)]
    return any(OPENS.fullmatch(ast.unparse(node).removesuffix("__init__").rstrip(".")) for node in (*bases, *called))


def test_the_table_has_all_that_opens_a_port() -> None:
    named = {name for row in ROWS for name in re.findall(r"`((?:flows|tasks|models|storage)/[\w/]+\.py)`", row[1])}
    assert {str(path.relative_to(ROOT)) for path in FILES if opens(path)} == named


@pytest.mark.parametrize("folder", ELSEWHERE)
def test_servers_of_tests_and_benchmarks_listen_on_this_machine_alone(folder: str) -> None:
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for call in calls(path):
            first = ast.unparse(call.args[0]) if call.args else ""
            anywhere = re.fullmatch(r"\(?['\"](?:0\.0\.0\.0|::|)['\"](?:,.*)?\)?", first)
            if OPENS.fullmatch(ast.unparse(call.func)) and anywhere:
                wrong.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    assert not wrong


@contextmanager
def prefect(folder: Path) -> Iterator[None]:
    with served(folder):
        yield


@contextmanager
def vote(folder: Path) -> Iterator[None]:
    with VoteServer(ballot_of(make_compared(folder / "compared"))):
        yield


JOINS = """
import sys
from tasks.pretrain.world import join
from tests.runtimes import runtime_of
world = join(runtime_of(device="cpu", processes=2))
world.wait()
if world.rank == 0:
    print("together", flush=True)
sys.stdin.read()
"""


def training(launcher: str) -> Callable[[Path], AbstractContextManager[None]]:
    @contextmanager
    def started(folder: Path) -> Iterator[None]:
        (folder / "joins.py").write_text(JOINS)
        runtime = runtime_of(device="cpu", processes=2, launcher=launcher).training
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            training_command("joins", folder / "spec", runtime),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        with process:
            assert process.stdout is not None
            while b"together" not in (line := process.stdout.readline()):
                assert line, "it has ended"
            yield
            process.terminate()

    return started


@contextmanager
def dask(folder: Path) -> Iterator[None]:
    from tasks.shards.dask_workers import DaskWorkers

    with closing(DaskWorkers(1, None)):
        yield


@contextmanager
def ray(folder: Path) -> Iterator[None]:
    from tasks.shards.ray_workers import RayWorkers

    with closing(RayWorkers(1, None)):
        yield


STARTED = {
    "Prefect's server": prefect,
    "the vote page": vote,
    "a training on one host, by torchrun": training("torchrun"),
    "a training on one host, by DeepSpeed": training("deepspeed"),
    "workers of Dask": dask,
    "workers of Ray": ray,
}


@pytest.mark.soak_but("Prefect's server", "a training on one host, by torchrun")
@pytest.mark.parametrize("what", STARTED)
def test_it_listens_where_the_table_says(what: str, tmp_path: Path) -> None:
    (row,) = [row for row in ROWS if row[0].startswith(what.partition(", by")[0])]
    assert row[2] == "127.0.0.1"
    with STARTED[what](tmp_path):
        found = listening(os.getpid())
    assert found, "nothing listens"
    assert all(address.is_loopback for address in found), found


def listening(process: int) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses that a process and its children listen on."""
    sockets = set()
    for each in (process, *(pid for pid, _ in descendants(process))):
        with suppress(OSError):
            for opened in Path(f"/proc/{each}/fd").iterdir():
                with suppress(OSError):
                    sockets.add(os.readlink(opened))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.add(_address(fields[1].partition(":")[0]))
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """As the kernel writes it: words of four bytes, in the order of this machine."""
    words = [bytes.fromhex(text[place : place + 8]) for place in range(0, len(text), 8)]
    whole = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    found = ipaddress.ip_address(whole)
    return getattr(found, "ipv4_mapped", None) or found
