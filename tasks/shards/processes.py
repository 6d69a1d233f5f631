"""Shards in worker processes, which end with the process that started them, by kill -9 of it too."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import Executor, ProcessPoolExecutor

from tasks.children.parent import die_with_parent


def processes_of(workers: int) -> Executor:
    """A pool of so many worker processes.

    Spawned, not forked: Prefect and torch have threads running, and forking a process with threads can deadlock.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(os.getpid(),))


def _begin(parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what to do
