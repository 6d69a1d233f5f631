"""A host that can't be reached any more is noticed within half a minute, and named.

Where a cable is cut or a machine loses its power, no packet says so: gloo and NCCL wait for as long as a step may take
(`runtime.pretrain.hang_minutes`). So the first process of each host keeps a connection to that of every other host, on
which nothing is sent. The kernels of both ends probe it (SO_KEEPALIVE, tcp(7)), and answer for processes that are busy,
or stopped; it fails only where a kernel, or the network between two, is gone. Then the process ends, and what started
it ends the others of its host.

A host whose connection can't be made, by a firewall for instance, isn't watched: `hang_minutes` remains.
"""

from __future__ import annotations

import errno
import os
import secrets
import selectors
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tasks.children.child import emit

IDLE_SECONDS, PROBE_SECONDS, PROBES = 5, 5, 5  # until the first probe, between two, and those that stay unanswered
CONNECT_SECONDS, POLL_SECONDS = 10.0, 1.0
GONE = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH}  # a process that ended closes or resets its connection
KEY_BYTES, RANK_BYTES = 16, 4


class Door(NamedTuple):
    """Where the first process of a host can be reached, and what is to be said there."""

    addresses: tuple[str, ...]
    port: int
    key: bytes


class Links:
    """The connections of this process, to be made before `doors` are exchanged."""

    def __init__(self, addresses: Sequence[str]) -> None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server(("", 0), family=family, backlog=1024, dualstack_ipv6=both)
        self._listener.settimeout(CONNECT_SECONDS)
        self.door = Door(tuple(addresses), self._listener.getsockname()[1], secrets.token_bytes(KEY_BYTES))

    @contextmanager
    def watched(self, doors: Sequence[Door | None], hosts: Sequence[str], rank: int) -> Iterator[None]:
        """Within the block this process, which has a `rank`, ends where another host can't be reached. `doors` and
        `hosts` are those of every rank; only the first of a host has a door."""
        self._doors, self._hosts, self._rank = doors, hosts, rank
        self._ended = threading.Event()
        thread = threading.Thread(target=self._watch, name="dead-link", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._listener, selectors.EVENT_READ)
            for rank, door in enumerate(self._doors[: self._rank]):  # those after it call here
                if door is not None and (called := self._called(door)) is not None:
                    selector.register(called, selectors.EVENT_READ, rank)
            while not self._ended.is_set():
                for key, _ in selector.select(POLL_SECONDS):
                    link = key.fileobj
                    assert isinstance(link, socket.socket)
                    if link is not self._listener:
                        if self._is_gone(link) and not self._ended.is_set():
                            self._end(key.data)
                        selector.unregister(link)
                        link.close()
                    elif (met := self._met()) is not None:
                        selector.register(met[0], selectors.EVENT_READ, met[1])
            for key in [*selector.get_map().values()]:
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()

    def _called(self, door: Door) -> socket.socket | None:
        for address in door.addresses:
            with suppress(OSError):
                link = _kept_alive(socket.create_connection((address, door.port), CONNECT_SECONDS))
                link.sendall(door.key + self._rank.to_bytes(RANK_BYTES))
                return link
        return None

    def _met(self) -> tuple[socket.socket, int] | None:
        """A connection that another process makes, and its rank; None for a stranger's."""
        with suppress(OSError):
            link = _kept_alive(self._listener.accept()[0])
            said = link.recv(KEY_BYTES + RANK_BYTES, socket.MSG_WAITALL)
            if said[:KEY_BYTES] == self.door.key:
                return link, int.from_bytes(said[KEY_BYTES:])
            link.close()
        return None

    def _is_gone(self, link: socket.socket) -> bool:
        try:
            link.recv(1)
        except OSError as error:
            return error.errno in GONE
        return False

    def _end(self, lost: int) -> None:
        """The main thread may wait in a collective operation for ever, and run no Python."""
        host, here = self._hosts[lost], self._hosts[self._rank]
        ranks = ", ".join(str(rank) for rank, other in enumerate(self._hosts) if other == host)
        seconds = IDLE_SECONDS + PROBE_SECONDS * PROBES
        told = f"{here} can't reach {host} (rank {ranks}): its system has not answered for {seconds} seconds"
        emit(crash=f"rank {self._rank}: {told}")
        with suppress(OSError):
            os.write(2, f"{told}: the process ends\n".encode())
        os._exit(1)


def _kept_alive(link: socket.socket) -> socket.socket:
    link.settimeout(CONNECT_SECONDS)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    return link
