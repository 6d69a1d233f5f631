"""Notices within half a minute that a host can't be reached any more, and names it.

If a cable is cut or a machine loses power, no packet reports it: gloo and NCCL wait for as long as a step may take
(`runtime.pretrain.hang_minutes`). So the first process of each host keeps an idle connection to the first process of
every other host. The kernels of both ends probe it (SO_KEEPALIVE, tcp(7)), and answer even for processes that are busy
or stopped, so it fails only if a kernel, or the network between two, is gone. Then the process ends, and its launcher
ends the others of its host.

A host that can't be connected, for instance because of a firewall, isn't watched: `hang_minutes` still applies.
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

IDLE_SECONDS, PROBE_SECONDS, PROBES = 5, 5, 5  # until the first probe, between two, and unanswered ones until failure
CONNECT_SECONDS, POLL_SECONDS = 10.0, 1.0
GONE = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH}  # if only the process ended: closed or reset
KEY_BYTES, RANK_BYTES = 16, 4


class Door(NamedTuple):
    """The address of a host's first process, and the key to send there first."""

    addresses: tuple[str, ...]
    port: int
    key: bytes


class Links:
    """The connections of this process. Create it before the ranks exchange their doors."""

    def __init__(self, addresses: Sequence[str]) -> None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server(("", 0), family=family, backlog=1024, dualstack_ipv6=both)
        self._listener.settimeout(CONNECT_SECONDS)
        self.door = Door(tuple(addresses), self._listener.getsockname()[1], secrets.token_bytes(KEY_BYTES))

    @contextmanager
    def watched(self, doors: Sequence[Door | None], hosts: Sequence[str], rank: int) -> Iterator[None]:
        """Ends this process, which has the number `rank`, if another host can't be reached within the block. `doors`
        and `hosts` are those of all ranks. Only the first rank of each host has a door."""
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
            for rank, door in enumerate(self._doors[: self._rank]):  # one link each: later ranks connect to this one
                if door is not None and (link := self._connect(door)) is not None:
                    selector.register(link, selectors.EVENT_READ, rank)
            while not self._ended.is_set():
                for key, _ in selector.select(POLL_SECONDS):
                    ready = key.fileobj
                    assert isinstance(ready, socket.socket)
                    if ready is not self._listener:  # nothing is ever sent, so it was closed, reset, or timed out
                        if self._is_gone(ready) and not self._ended.is_set():
                            self._end(key.data)
                        selector.unregister(ready)
                        ready.close()
                    elif (accepted := self._accept()) is not None:
                        selector.register(accepted[0], selectors.EVENT_READ, accepted[1])
            for key in [*selector.get_map().values()]:
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()

    def _connect(self, door: Door) -> socket.socket | None:
        for address in door.addresses:
            with suppress(OSError):
                link = _kept_alive(socket.create_connection((address, door.port), CONNECT_SECONDS))
                link.sendall(door.key + self._rank.to_bytes(RANK_BYTES))
                return link
        return None

    def _accept(self) -> tuple[socket.socket, int] | None:
        """The connection of another rank, and its number. None for a connection without the key, which is closed."""
        with suppress(OSError):
            link = _kept_alive(self._listener.accept()[0])
            greeting = link.recv(KEY_BYTES + RANK_BYTES, socket.MSG_WAITALL)
            if greeting[:KEY_BYTES] == self.door.key:
                return link, int.from_bytes(greeting[KEY_BYTES:])
            link.close()
        return None

    def _is_gone(self, link: socket.socket) -> bool:
        try:
            link.recv(1)
        except OSError as error:
            return error.errno in GONE
        return False

    def _end(self, lost: int) -> None:
        """End the process at once: the main thread may wait forever in a collective operation, and run no Python."""
        host, here = self._hosts[lost], self._hosts[self._rank]
        ranks = ", ".join(str(rank) for rank, other in enumerate(self._hosts) if other == host)
        seconds = IDLE_SECONDS + PROBE_SECONDS * PROBES
        message = f"{here} can't reach {host} (rank {ranks}): its system has not answered for {seconds} seconds"
        emit(crash=f"rank {self._rank}: {message}")
        with suppress(OSError):
            os.write(2, f"{message}: the process ends\n".encode())
        os._exit(1)


def _kept_alive(link: socket.socket) -> socket.socket:
    link.settimeout(CONNECT_SECONDS)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    return link
