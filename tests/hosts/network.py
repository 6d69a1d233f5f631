"""Two hosts on one machine: network namespaces with addresses, loopbacks and host names of their own, on a bridge."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SLOW = (
    ("20 ms later", "netem", "delay", "20ms"),
    ("50 Mbit/s", "tbf", "rate", "50mbit", "burst", "64kb", "latency", "400ms"),
)
RUNS, STOPPED = 0.005, 0.03  # seconds, of a host that stutters
ROOT = Path(__file__).resolve().parents[2]


def ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command `ip`."""
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


def why_not() -> str | None:
    """The reason why hosts can't be created here, None if they can."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        return "needs root, ip and unshare"
    name = f"gm{os.getpid()}"
    made = ip("netns", "add", name, check=False)
    if made.returncode == 0:
        made = ip("link", "add", name, "type", "bridge", check=False)
        ip("link", "del", name, check=False)
    ip("netns", "del", name, check=False)
    return f"no network namespaces: {made.stderr.strip()}" if made.returncode else None


@dataclass(frozen=True)
class Host:
    """A namespace. `cable` is the end of its link at the bridge."""

    name: str
    address: str
    cable: str

    def start(self, command: list[str], log: IO[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start a command on this host, in the project's folder."""
        named = ["unshare", "--uts", "sh", "-c", f'hostname {self.name}; exec "$@"', "sh", *command]
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *named],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", **environment},
        )

    def processes(self) -> list[int]:
        """The processes that run on this host."""
        return [int(pid) for pid in ip("netns", "pids", self.name).stdout.split()]

    def kill(self) -> None:
        """Kill -9 everything that runs on this host, as when its power fails."""
        while running := self.processes():
            _signal(running, signal.SIGKILL)
            time.sleep(0.1)

    @contextlib.contextmanager
    def stuttering(self) -> Iterator[None]:
        """Within the block everything on this host is stopped most of the time, as on a throttled processor."""
        ended, running = threading.Event(), self.processes()

        def stutter() -> None:
            while not ended.wait(RUNS):
                _signal(running, signal.SIGSTOP)
                ended.wait(STOPPED)
                _signal(running, signal.SIGCONT)

        thread = threading.Thread(target=stutter)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def link(self, state: str) -> None:
        """Pull the cable (`down`), or plug it in again (`up`)."""
        ip("link", "set", self.cable, state)

    def slow(self) -> str:
        """Slow down everything that this host sends, in the first way that the kernel supports. Returns which one."""
        for name, *words in SLOW:
            command = ["ip", "netns", "exec", self.name, "tc", "qdisc", "add", "dev", "eth0", "root", *words]
            if subprocess.run(command, capture_output=True).returncode == 0:
                return name
        raise RuntimeError("needs tc with netem or tbf")


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts that know each other by name. Afterwards they are removed with everything that runs on them."""
    number = os.getpid()
    bridge = f"gmbr{number}"
    hosts = [
        Host(f"{letter}{number}", f"198.18.{number % 256}.{place}", f"gm{letter}{number}")
        for place, letter in enumerate("ab", 1)
    ]
    names = "127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in hosts)
    files = [Path("/etc/netns", host.name, "hosts") for host in hosts]  # over /etc/hosts, by `ip netns exec`
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        for host, file in zip(hosts, files, strict=True):
            file.parent.mkdir(parents=True)
            file.write_text(names)
            ip("netns", "add", host.name)
            ip("link", "add", host.cable, "type", "veth", "peer", "name", "eth0", "netns", host.name)
            ip("link", "set", host.cable, "master", bridge, "up")
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", host.name, "link", "set", device, "up")
        yield hosts[0], hosts[1]
    finally:
        for host, file in zip(hosts, files, strict=True):
            if file.exists():
                with contextlib.suppress(subprocess.CalledProcessError):
                    host.kill()
            ip("link", "del", host.cable, check=False)  # a deleted namespace keeps its end for a while
            ip("netns", "del", host.name, check=False)
            shutil.rmtree(file.parent, ignore_errors=True)
        ip("link", "del", bridge, check=False)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
