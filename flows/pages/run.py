"""Publishes a run's report page in Prefect, however the run ends."""

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
from tasks.stage.display.pages import report
from tasks.stage.session import Session


@contextmanager
def shown(profile: Profile, session: Session, asked: Asked) -> Iterator[None]:
    """Publish the page of a flow run, whose work is the block. Does nothing outside a flow run."""
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
        if not isinstance(error, httpx.HTTPError | ServerError):  # after these no server is left for a page
            if error is not None:
                session.observer.failed(_short(error))
            if error is not None or session.steps:  # a run that found nothing to do needs no page
                _publish(profile, session, asked, time.monotonic() - started, error)


def _short(error: BaseException) -> str:
    if isinstance(error, GristmillError):
        return error.message
    if isinstance(error, Exception):
        return f"{type(error).__name__}."
    return waits_for(error) or "cancelled or interrupted."


def _publish(profile: Profile, session: Session, asked: Asked, seconds: float, error: BaseException | None) -> None:
    """Publish the run's page, and its stages' pages again, which can now name their readers."""
    from prefect.artifacts import create_markdown_artifact
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import ArtifactUpdate

    with suppress(httpx.HTTPError):  # a page must not fail a finished run
        page = run_page(session, profile, asked, seconds, error)
        create_markdown_artifact(markdown=page, key="run-report", description="The results of this run")
        with get_client(sync_client=True) as client:
            for name, artifact in session.pages.items():
                client.update_artifact(artifact, ArtifactUpdate(data=report(name, session)))  # type: ignore[arg-type]
