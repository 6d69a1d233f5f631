"""What a process prints to, where whoever read it may be gone."""

from __future__ import annotations

import os
import select

STREAMS = (1, 2)


def drop_closed_streams() -> None:
    """Let output and errors go nowhere once nobody reads their pipe, as after a kill -9 of a worker of Prefect: rich,
    which writes Prefect's log, ends a process at its next line otherwise, though its work goes on well."""
    for stream in STREAMS:
        poll = select.poll()
        try:
            poll.register(stream, 0)
            closed = any(event & select.POLLERR for _, event in poll.poll(0))
        except OSError:
            continue
        if closed:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)
