"""Names the host that a training lost: gloo and NCCL report addresses, but people know hosts by name. A host that
vanishes silently is noticed too (dead_link.py)."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tasks.children.child import emit
from tasks.children.hosts import on_other_hosts
from tasks.stage.runtime import TrainingRuntime
from tasks.training.recovery.dead_link import Door, Links

# "Connection closed by peer [10.0.0.2]:29500" of gloo, "closed by remote peer worker-2<29500>" of NCCL
ADDRESS = re.compile(r"\[([0-9a-fA-F.:]+)\]:\d+|remote peer ([\w.-]+)<\d+>")
CONNECTION = re.compile(r"gloo/transport|NCCL|ncclRemoteError|ncclSystemError|Timed out waiting \d+ms")
SIOCGIFADDR = 0x8915
IPV6 = Path("/proc/net/if_inet6")


class Place(NamedTuple):
    """The host of a rank. The first rank of each host has a door for those of the other hosts."""

    host: str
    addresses: frozenset[str]
    door: Door | None = None


@contextmanager
def hosts_named(training: TrainingRuntime) -> Iterator[None]:
    """Turns the loss of a connection in the block into a ConnectionError that names the host and its ranks, and ends
    the process if a host can't be reached. Reports the hosts to the stage. Every rank of a process group must enter
    it."""
    import torch

    group = torch.distributed
    if not (on_other_hosts(training) and group.is_initialized() and group.get_world_size() > 1):
        yield
        return
    places: list[Any] = [None] * group.get_world_size()
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    links = Links(training_addresses()) if first else None
    group.all_gather_object(places, _here()._replace(door=links.door if links is not None else None))
    if first:
        emit(hosts=sorted({place.host for place in places}))
    doors, hosts = [place.door for place in places], [place.host for place in places]
    try:
        with links.watched(doors, hosts, group.get_rank()) if links is not None else nullcontext():
            yield
    except RuntimeError as error:
        sentence = lost_connection(str(error), places, group.get_rank())
        if sentence is None:
            raise
        raise ConnectionError(sentence) from error


def lost_connection(message: str, places: Sequence[Place], rank: int) -> str | None:
    """A sentence about the connection that `rank` lost by the `message` of an error, with the host's name, or None if
    the error is of another kind."""
    if CONNECTION.search(message) is None:
        return None
    names = {name for groups in ADDRESS.findall(message) for name in groups if name}
    own = places[rank].host
    lost = [number for number, place in enumerate(places) if names & (place.addresses | {place.host})]
    if not lost:
        others = ", ".join(sorted({place.host for place in places} - {own})) or f"all are named {own}"
        return f"{own} lost its connection to one of the other hosts ({others})"
    hosts = " and ".join(sorted({places[number].host for number in lost}))
    ranks = ", ".join(str(number) for number in lost)
    return f"{own} lost its connection to {hosts} (rank {ranks})"


def _here() -> Place:
    addresses = frozenset(address for _, address in _interfaces())
    return Place(socket.gethostname(), addresses - {"127.0.0.1", "::1"})


def training_addresses() -> list[str]:
    """The addresses by which gloo and NCCL reach this host: those of the interfaces that their variables name, or else
    those of its host name, or else all."""
    own = [(name, address) for name, address in _interfaces() if not address.startswith(("127.", "::1", "fe80:"))]
    variables = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    listed = ",".join(os.environ[variable] for variable in variables if variable in os.environ).split(",")
    prefixes = tuple(name.removeprefix("=") for name in listed if name and not name.startswith("^"))
    chosen = [address for name, address in own if prefixes and name.startswith(prefixes)]
    with suppress(OSError):
        known = {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)}
        chosen = chosen or [address for _, address in own if address in known]
    return chosen or [address for _, address in own]


def _interfaces() -> Iterator[tuple[str, str]]:
    """The name and address of each network interface (netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                request = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("40s", name.encode()))
                yield name, socket.inet_ntop(socket.AF_INET, request[20:24])
    if IPV6.exists():
        for line in IPV6.read_text().splitlines():
            address, *_, name = line.split()
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address))
