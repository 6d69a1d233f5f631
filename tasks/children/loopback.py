"""Processes of a training on one host meet on 127.0.0.1 alone, where no other host can speak to them.

torch's store listens on every address of the host, and whoever speaks to it can change what the ranks believe of each
other, pickled objects too. Given a socket, it listens on that one.

    python -m tasks.children.loopback --nproc-per-node=2 --rdzv-backend=loopback --rdzv-endpoint=127.0.0.1:PORT …

is torchrun with such a store.
"""

from __future__ import annotations

import socket
from collections.abc import MutableMapping
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

ADDRESS, BACKEND, DEVICE = "127.0.0.1", "loopback", "lo"
MEETING_SECONDS = 600  # as torchrun's


def store(port: int, size: int, *, leads: bool, timeout: timedelta) -> TCPStore:
    """The store of `size` processes, or of one agent; that which `leads` listens."""
    listener = socket.create_server((ADDRESS, port), backlog=size + 16).detach() if leads else None
    return TCPStore(ADDRESS, port, size, leads, timeout, multi_tenant=True, master_listen_fd=listener)


def store_of_launcher(environment: MutableMapping[str, str], timeout: timedelta) -> TCPStore | None:
    """The store of this rank of a training on one host, which then speaks by the loopback device alone; None where it
    is on many, or where its launcher has a store already."""
    if environment.get("MASTER_ADDR") != ADDRESS:
        return None
    for library in ("GLOO", "NCCL"):  # which else take the first device that leads to other hosts
        environment.setdefault(f"{library}_SOCKET_IFNAME", DEVICE)
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
        return None
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    return store(int(environment["MASTER_PORT"]), size, leads=rank == 0, timeout=timeout)


class _OnThisHost(StaticTCPRendezvous):
    """The meeting of one agent with itself."""

    def next_rendezvous(self) -> RendezvousInfo:
        """See torch; the base makes no store where there is one."""
        self._store = self._store or store(self.master_port, 1, leads=True, timeout=self.timeout)
        return super().next_rendezvous()

    def get_backend(self) -> str:
        """See torch, which compares it with the one that was asked for."""
        return BACKEND


def _handler(parameters: RendezvousParameters) -> _OnThisHost:
    port = int(parameters.endpoint.rpartition(":")[2])
    return _OnThisHost(ADDRESS, port, 0, 1, parameters.run_id, MEETING_SECONDS)


def main() -> None:
    """torchrun's command."""
    from torch.distributed.run import main as torchrun

    rendezvous_handler_registry.register(BACKEND, _handler)
    torchrun()


if __name__ == "__main__":
    main()
