"""What a run does in Prefect beside its stages: it has a page of what it came to, however it ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx

from flows.pages.report import run_page
from flows.records.recorder import Asked
from flows.server import hurry
from flows.stop import waits_for
from profiles.schema import Profile
from storage.errors import GristmillError, ServerError
from tasks.stage.pages import report
from tasks.stage.session import Session


@contextmanager
def shown(profile: Profile, session: Session, asked: Asked) -> Iterator[None]:
    """The block is a flow run's work; outside of a flow run nothing is shown. Raises what the block raises."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        yield
        return
    started, ended = time.monotonic(), False
    try:
        yield
        ended = True
    finally:
        error = None if ended else sys.exc_info()[1]
        if error is not None and not isinstance(error, Exception):
            hurry()
        if not isinstance(error, httpx.HTTPError | ServerError):  # after which nobody is there to show it to
            if error is not None:
                session.observer.failed(_short(error))
            if error is not None or session.steps:  # one that looked, and found nothing to do, has nothing to tell
                _publish(profile, session, asked, time.monotonic() - started, error)


def _short(error: BaseException) -> str:
    if isinstance(error, GristmillError):
        return error.message
    if isinstance(error, Exception):
        return f"{type(error).__name__}."
    return waits_for(error) or "cancelled or interrupted."


def _publish(profile: Profile, session: Session, asked: Asked, seconds: float, error: BaseException | None) -> None:
    """The run's page; and the pages of its stages again, which can now say what reads them."""
    from prefect.artifacts import create_markdown_artifact
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import ArtifactUpdate

    with suppress(httpx.HTTPError):  # the run itself is done: its own state will say so
        page = run_page(session, profile, asked, seconds, error)
        create_markdown_artifact(markdown=page, key="run-report", description="What this run came to")
        with get_client(sync_client=True) as client:
            for name, artifact in session.pages.items():
                client.update_artifact(artifact, ArtifactUpdate(data=report(name, session)))  # type: ignore[arg-type]
