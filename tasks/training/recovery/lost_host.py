"""Which host a training lost: gloo and NCCL name an address, people know hosts by name. One that vanishes without a
word is noticed too (dead_link.py)."""

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
    """Where a rank runs; the first of a host has a door for those of others."""

    host: str
    addresses: frozenset[str]
    door: Door | None = None


@contextmanager
def hosts_named(training: TrainingRuntime) -> Iterator[None]:
    """Within it the loss of a connection to another host is a ConnectionError that names the host and its ranks, and a
    host that can't be reached ends the process; the stage is told who trains. To be entered by every rank of a process
    group."""
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
        sentence = named(str(error), places, group.get_rank())
        if sentence is None:
            raise
        raise ConnectionError(sentence) from error


def named(message: str, places: Sequence[Place], rank: int) -> str | None:
    """What an error says of the rank that met it, with the host's name; None where it is none of a connection."""
    if CONNECTION.search(message) is None:
        return None
    told = {name for found in ADDRESS.findall(message) for name in found if name}
    own = places[rank].host
    lost = [number for number, place in enumerate(places) if told & (place.addresses | {place.host})]
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
    """This host's addresses by which gloo and NCCL reach it: of the interfaces that they are told, or else that of its
    name, or else all."""
    own = [(name, address) for name, address in _interfaces() if not address.startswith(("127.", "::1", "fe80:"))]
    told = [os.environ[variable] for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if variable in os.environ]
    wanted = tuple(name.removeprefix("=") for name in ",".join(told).split(",") if name and not name.startswith("^"))
    chosen = [address for name, address in own if wanted and name.startswith(wanted)]
    with suppress(OSError):
        known = {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)}
        chosen = chosen or [address for _, address in own if address in known]
    return chosen or [address for _, address in own]


def _interfaces() -> Iterator[tuple[str, str]]:
    """The name and address of each (netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                told = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("40s", name.encode()))
                yield name, socket.inet_ntop(socket.AF_INET, told[20:24])
    if IPV6.exists():
        for line in IPV6.read_text().splitlines():
            address, *_, name = line.split()
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address))
