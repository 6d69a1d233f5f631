"""The interface of ledgers, which hold keys and counts for several processes.

A process tells the ledger every BEAT_SECONDS that it runs. Running requests of a process that has been silent for
LEASE_SECONDS lose their slots and reservations, as it was killed. They still count as requests of their minute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from storage.errors import ConfigError
from tasks.serve.access.config import Limits
from tasks.serve.access.keys import Key
from tasks.serve.access.quota import SECOND, Ask, Grant, period

BEAT_SECONDS = 2.0
LEASE_SECONDS = 10.0
LEASE = int(LEASE_SECONDS * SECOND)


@dataclass(frozen=True)
class Request:
    """A request of a key that a process admits."""

    id: int
    key: str
    at: int
    process: str

    def periods(self) -> list[str]:
        """The labels of the budget periods that it is booked to: those in which it was admitted."""
        return [period(kind, self.at).label for kind in ("day", "month", "total")]


class Ledger(Protocol):
    """Keys and counts. Every method is atomic between processes, and raises StoreError if the ledger can't be used."""

    def add(self, key: Key) -> None:
        """Add a key. Raises ConfigError if an active key has its name."""
        ...

    def find(self, identity: str) -> Key | None:
        """The key with this id."""
        ...

    def all_keys(self) -> list[Key]:
        """All keys, oldest first."""
        ...

    def revoke(self, identity: str, now: int) -> None:
        """Revoke a key for good."""
        ...

    def spent(self, key: str, label: str) -> tuple[int, int]:
        """Tokens and nano-dollars of a key in a budget period."""
        ...

    def admit(self, request: Request, limits: Limits, ask: Ask) -> Grant:
        """Admit a request and reserve what it may use. Raises AccessRefused."""
        ...

    def settle(self, request: Request, tokens: int, nano: int) -> None:
        """Book what a request used in place of what it reserved. To be called again only after a StoreError."""
        ...

    def beat(self, process: str, now: int) -> None:
        """Say that a process runs, and free what killed ones had reserved."""
        ...

    def leave(self, process: str, now: int) -> None:
        """Free what a process has reserved: it ends."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


def name_taken(name: str) -> ConfigError:
    """The error for a second active key of a name."""
    return ConfigError(
        f"An active key is called {name}.",
        "Choose another name, or revoke that key first: `gristmill serve keys revoke NAME`.",
    )
