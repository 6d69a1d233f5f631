"""The console of a deployment's run, which outlives its reader.

A worker reads it through a pipe, and the worker may be killed. The next line that anything logs would find the pipe
broken, and Prefect's handler ends the process for it, which its page would call a crash. What the run logs is on its
page in any case.
"""

from __future__ import annotations

import functools
import os
import select
import threading
from collections.abc import Sequence

STREAMS = (1, 2)
_GONE = threading.Event()


@functools.cache  # once a process
def outlive_reader() -> None:
    """From now on what this process writes to a pipe that nobody reads any more goes nowhere."""
    threading.Thread(target=_watch, args=(STREAMS,), name="console", daemon=True).start()


def reader_is_gone() -> bool:
    """Whether the reader of the console has gone, which is the worker that has started this process."""
    return _GONE.is_set()


def _watch(streams: Sequence[int]) -> None:
    poll = select.poll()
    for stream in streams:
        poll.register(stream, 0)  # asks for nothing: an error is told nevertheless
    left = len(streams)
    while left:
        told = poll.poll()
        broken = [stream for stream, event in told if event & (select.POLLERR | select.POLLHUP)]
        for stream, _ in told:
            poll.unregister(stream)
        for stream in broken:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)
        if broken:
            _GONE.set()
        left -= len(told)
