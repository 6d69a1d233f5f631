"""The ranks of a training on one host: `python -m tasks.children.ranks NUMBER PORT MODULE SPEC`.

Each runs `python -m MODULE SPEC` with the variables that torchrun would set. On a machine without a GPU it is a fork
(warm). The first that fails ends them all.

They meet only on 127.0.0.1, which other hosts can't reach. By itself torch's store listens on every address of the
host, and whoever connects to it can change what the ranks exchange through it, pickled objects included. Given a
socket, it listens on that one only.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from tasks.children.devices import missing_gpu
from tasks.children.die_with_parent import die_with_parent
from tasks.children.warm.server import import_for, reseed

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

ADDRESS, DEVICE = "127.0.0.1", "lo"
GRACE_SECONDS = 30.0  # between TERM and KILL, for ranks that are left
POLL_SECONDS = 0.05


def store_of_launcher(environment: MutableMapping[str, str], timeout: timedelta) -> TCPStore | None:
    """The store of this rank of a training on one host, which then communicates only over the loopback device. None for
    a training on many hosts. Rank 0's store listens."""
    if environment.get("MASTER_ADDR") != ADDRESS:
        return None
    from torch._C._distributed_c10d import TCPStore

    for library in ("GLOO", "NCCL"):  # they would take the first device that leads to other hosts
        environment.setdefault(f"{library}_SOCKET_IFNAME", DEVICE)
    rank, size, port = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    listener = socket.create_server((ADDRESS, port), backlog=size + 16).detach() if rank == 0 else None
    return TCPStore(ADDRESS, port, size, rank == 0, timeout, multi_tenant=True, master_listen_fd=listener)


def main() -> None:
    """Run the launcher. Returns only in a rank that is a fork of it."""
    number, port, *words = sys.argv[1:]
    die_with_parent()
    for one in (signal.SIGTERM, signal.SIGINT):  # each rank gets its own signal, and decides (orderly_stop.py)
        signal.signal(one, lambda number, frame: None)
    forks = missing_gpu() is not None
    if forks:
        import_for(words[0])
    pids, started = [], []
    for rank in range(int(number)):
        variables = _variables(rank, int(number), port)
        if not forks:
            started.append(subprocess.Popen([sys.executable, "-m", *words], env={**os.environ, **variables}))
            pids.append(started[-1].pid)
            continue
        launcher = os.getpid()
        pids.append(os.fork())
        if not pids[-1]:
            die_with_parent(launcher)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.update(variables)
            reseed()
            sys.argv = words
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
            return
    sys.exit(_wait(pids))


def _variables(rank: int, number: int, port: str) -> dict[str, str]:
    mine = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0}
    sizes = {"WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number, "ROLE_WORLD_SIZE": number, "GROUP_WORLD_SIZE": 1}
    return {name: str(value) for name, value in {**mine, **sizes, "MASTER_ADDR": ADDRESS, "MASTER_PORT": port}.items()}


def _wait(pids: Sequence[int]) -> int:
    """Wait for all. Once one has failed, end the others. Returns the exit code."""
    left, failed, deadline = {pid: rank for rank, pid in enumerate(pids)}, 0, 0.0
    while left:
        pid, status = os.waitpid(-1, os.WNOHANG if failed else 0)
        if not pid:
            if time.monotonic() > deadline:
                _signal(left, signal.SIGKILL)
            time.sleep(POLL_SECONDS)
            continue
        rank, code = left.pop(pid), os.waitstatus_to_exitcode(status)
        if code and not failed:
            # In torchrun's format, so that supervise.py reads both
            print(f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {pid})", file=sys.stderr)
            failed, deadline = 1, time.monotonic() + GRACE_SECONDS
            _signal(left, signal.SIGTERM)
    return failed


def _signal(pids: Sequence[int] | dict[int, int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    main()
