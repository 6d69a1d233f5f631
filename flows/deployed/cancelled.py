"""A run that somebody stops: it ends as *Cancelled*, with a message that says how.

Prefect takes every signal except a worker's for a crash. So a run whose end nobody else reports (at a terminal, or with
a dead worker) reports it itself. A run that is cancelled on its page, with nobody to end it, is ended here.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from uuid import UUID

import httpx

from flows.deployed.console import reader_is_gone
from flows.server import hurry
from flows.stop import AGAIN
from tasks.stage.display.pages import as_signal

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

LOOK_SECONDS = 5.0
WORKER_SECONDS = 45.0  # for a worker to end what it started, including a training's last checkpoint
ON_PAGE: set[UUID] = set()  # runs of this process that were cancelled on their page


@contextmanager
def ended_when_cancelled() -> Iterator[None]:
    """Within the block, a flow run's, end this process as a worker would if the run stays *Cancelling*."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    # Nobody else can cancel on a run's own server
    if context is None or context.flow_run is None or not os.environ.get("PREFECT_API_URL"):
        yield
        return
    deployed = context.flow_run.deployment_id is not None
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context.flow_run.id, deployed, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()


def _watch(run: UUID, deployed: bool, over: threading.Event) -> None:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    since: float | None = None
    with get_client(sync_client=True) as client:
        while not over.wait(LOOK_SECONDS):
            with suppress(httpx.HTTPError, ObjectNotFound):  # the server is away for a while, or the run was deleted
                state = client.read_flow_run(run).state
                if state is None or not state.is_cancelling():
                    continue
                since = time.monotonic() if since is None else since
                # A live worker ends the run itself, within its time. A dead one never will
                has_worker = deployed and not reader_is_gone()
                if time.monotonic() - since >= (WORKER_SECONDS if has_worker else 0):
                    end_as_cancelled(run)
                    return


def end_as_cancelled(run: UUID) -> None:
    """End this process in order, as a worker would, because somebody cancelled the run on its page."""
    ON_PAGE.add(run)
    os.kill(os.getpid(), signal.SIGTERM)


def cancelled(by: BaseException) -> State[None] | None:
    """The state of the current flow run, which `by` stopped: a KeyboardInterrupt or Prefect's TerminationSignal. The
    flow's caller gets the latter. None if a worker stops the run and reports its state, or the server is away."""
    from prefect.context import FlowRunContext
    from prefect.states import Cancelled

    context, sent = FlowRunContext.get(), as_signal(by)
    if context is None or context.flow_run is None:
        return None
    if context.flow_run.id in ON_PAGE:
        how = "Cancelled on its page."
    elif context.flow_run.deployment_id is None:
        how = f"Stopped by {name_of(sent.signal)} at the terminal."
    else:
        return None
    if not hurry():
        return None
    return Cancelled(message=f"{how} {AGAIN}", data=sent)


def name_of(number: int) -> str:
    """A signal's name for people."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
