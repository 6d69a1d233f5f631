"""A run that is cancelled on its page though nobody ends it: it was started at a terminal, or its worker is gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

import httpx

LOOK_SECONDS = 5.0
WORKER_SECONDS = 45.0  # in which a worker ends what it has started, the checkpoint of a training included


@contextmanager
def ended_when_cancelled() -> Iterator[None]:
    """Within the block, a flow run's, this process is ended as by a worker where the run stays *Cancelling*. Prefect's
    engine says *Crashed* then, as of every signal."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    # Nobody else knows a server of the run's own
    if context is None or context.flow_run is None or not os.environ.get("PREFECT_API_URL"):
        yield
        return
    patience = 0.0 if context.flow_run.deployment_id is None else WORKER_SECONDS
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context.flow_run.id, patience, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()


def _watch(run: UUID, patience: float, over: threading.Event) -> None:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    since: float | None = None
    with get_client(sync_client=True) as client:
        while not over.wait(LOOK_SECONDS):
            with suppress(httpx.HTTPError, ObjectNotFound):  # of a server that is gone for a while, or a deleted run
                state = client.read_flow_run(run).state
                if state is None or not state.is_cancelling():
                    continue
                since = time.monotonic() if since is None else since
                if time.monotonic() - since >= patience:
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
