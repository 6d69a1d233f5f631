"""Run by each Dask worker that is started here, before its first call: it ends with this process, not by Ctrl-C."""

from __future__ import annotations

import signal

from tasks.children.die_with_parent import die_with_parent


def dask_setup(worker: object) -> None:
    """Called by Dask in the worker's main thread."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what to do
