"""Lets a deployment's run outlive the reader of its console.

A worker reads the console through a pipe, and the worker may be killed. The next log line would then find a broken
pipe, and Prefect's handler would end the process, a crash on its page. The run's log is on its page in any case.
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
    """Discard what this process writes to its console once nobody reads it."""
    threading.Thread(target=_watch, args=(STREAMS,), name="console", daemon=True).start()


def reader_is_gone() -> bool:
    """Whether the reader of the console, the worker that started this process, is gone."""
    return _GONE.is_set()


def _watch(streams: Sequence[int]) -> None:
    poll = select.poll()
    for stream in streams:
        poll.register(stream, 0)  # no events requested: errors and hang-ups are always reported
    left = len(streams)
    while left:
        events = poll.poll()
        broken = [stream for stream, event in events if event & (select.POLLERR | select.POLLHUP)]
        for stream, _ in events:
            poll.unregister(stream)
        for stream in broken:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)
        if broken:
            _GONE.set()
        left -= len(events)
