"""Opens the ledger that a server's limits name."""

from __future__ import annotations

from pathlib import Path

from tasks.serve.access.config import LimitsConfig
from tasks.serve.access.ledger import Ledger
from tasks.serve.access.sqlite_ledger import SqliteLedger


def open_ledger(config: LimitsConfig, folder: Path) -> Ledger:
    """The ledger of a server: Redis if `ledger` is set, otherwise a file in its state folder."""
    if config.ledger is not None:
        from tasks.serve.access.redis_ledger import RedisLedger, connect

        return RedisLedger(connect(config.ledger, config.ledger_password_env))
    return SqliteLedger(folder)
