"""Two hosts that are network namespaces: `python -m tests.hosts` prints what is asserted here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import Popen

import pytest

from flows.commands.hosts import Cluster, written
from flows.options import Scheduler
from tasks.training.recovery.lost_host import Place, lost_connection
from tests.hosts.drills import DRILLS, NOTICED, STEPS, drilled, undisturbed
from tests.hosts.link import SECONDS
from tests.hosts.network import Host, ip, two_hosts, why_not

WHY_NOT = why_not()
needs_hosts = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")
QUICK, SHORT = "start and finish", 10

PLACES = [Place("a", frozenset({"10.0.0.1"})), *[Place("b", frozenset({"10.0.0.2", "fd00::2"}))] * 2]


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            "[../gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:33950: Connection reset by peer. GLHF!",
            "a lost its connection to b (rank 1, 2)",
        ),
        (
            "NCCL error: remote process exited or there was a network error\nLast error:\nsocketProgress: "
            "Connection closed by remote peer b<48120>",
            "a lost its connection to b (rank 1, 2)",
        ),
        ("[gloo/transport/tcp/pair.cc] Write error [fd00::2]:1: Broken pipe", "a lost its connection to b (rank 1, 2)"),
        (
            "[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 3600000ms for recv operation to complete",
            "a lost its connection to one of the other hosts (b)",
        ),
        ("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", None),
    ],
    ids=["gloo", "nccl", "ipv6", "timeout", "another error"],
)
def test_a_lost_connection_is_told_by_the_names_of_hosts(message: str, sentence: str | None) -> None:
    assert lost_connection(message, PLACES, 0) == sentence


@pytest.mark.soak
@needs_hosts
def test_two_hosts_train_what_one_does_with_as_many_processes(tmp_path: Path) -> None:
    row = drilled(QUICK, tmp_path, undisturbed(tmp_path, SHORT), SHORT)
    assert row.same
    assert row.processes == 2


@contextlib.contextmanager
def watching(folder: Path, hosts: Sequence[Host]) -> Iterator[list[Popen[str]]]:
    """A process on each of two hosts that watches the link between them."""
    with (folder / "log").open("w") as log:
        command = [sys.executable, "-m", "tests.hosts.link", str(folder)]
        yield [host.start([*command, str(rank)], log, {}) for rank, host in enumerate(hosts)]


@pytest.mark.soak
@needs_hosts
def test_a_cut_link_is_noticed_at_both_of_its_ends_and_the_other_end_is_named(tmp_path: Path) -> None:
    with two_hosts() as hosts, watching(tmp_path, hosts) as processes:
        linked(hosts[0])
        hosts[1].link("down")
        assert [process.wait(3 * SECONDS + 10) for process in processes] == [1, 1]
    told = (tmp_path / "log").read_text()
    assert f"first can't reach second (rank 1): its system has not answered for {SECONDS} seconds" in told
    assert "second can't reach first (rank 0)" in told


@pytest.mark.soak
@needs_hosts
def test_a_process_that_is_stopped_or_killed_is_no_cut_link(tmp_path: Path) -> None:
    with two_hosts() as hosts, watching(tmp_path, hosts) as (here, other):
        linked(hosts[0])
        os.kill(other.pid, signal.SIGSTOP)
        time.sleep(2 * SECONDS)
        assert here.poll() is None
        other.kill()
        time.sleep(2 * SECONDS)
        assert here.poll() is None
        (tmp_path / "end").touch()
        assert here.wait(10) == 0
    assert "can't reach" not in (tmp_path / "log").read_text()


def linked(host: Host) -> None:
    """Wait for a connection between this host and another."""
    deadline = time.monotonic() + 60
    while host.address not in ip("netns", "exec", host.name, "ss", "-Htn", "state", "established").stdout:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@needs_hosts
@pytest.mark.soak
def test_the_commands_that_are_printed_train_on_both_hosts(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with two_hosts() as hosts, (tmp_path / "log").open("w") as log:
        names = ",".join(host.name for host in hosts)
        overrides = [f"runtime.store={store}", "runtime.compute.threads=1"]
        told = written("smoke", overrides, Scheduler.TORCHRUN, Cluster(names)).splitlines()
        run, join = [shlex.split(line)[1:] for line in told if not line.startswith("#")]
        command = [sys.executable, "-m", "flows.cli"]
        environment = {"HOME": str(tmp_path), "PREFECT_HOME": str(tmp_path / "prefect")}
        hosts[1].start([*command, *join], log, environment)
        started = hosts[0].start([*command, *run, "--to", "pretrain"], log, environment)
        assert started.wait(1800) == 0, (tmp_path / "log").read_text()[-3000:]
    (manifest,) = store.glob("artifacts/pretrain/*/manifest.json")
    assert json.loads(manifest.read_text())["facts"]["processes"] == 2


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the model of an undisturbed training."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed"), STEPS)


@needs_hosts
@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in DRILLS if name != QUICK])
def test_a_training_on_two_hosts_survives(name: str, expected: str, tmp_path: Path) -> None:
    row = drilled(name, tmp_path, expected)
    assert row.same
    assert row.noticed is None or row.noticed <= (NOTICED if row.told else 60)
    if "link cut" in name or "without power, which" in name:
        assert re.search(r"a\d+ can't reach b\d+ \(rank \d\)", row.told)
    if "killed" in name:
        assert "lost its connection to b" in row.told
    if name == "straggler":
        assert re.match(r"slow host: b\d+ \(rank \d\) takes", row.told)
