"""How a flow run begins and ends: tagged with its profile, and, after an error that a person can fix or a signal, with
two sentences instead of a traceback on its page.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import httpx

from flows.deployed.cancelled import cancelled, ended_when_cancelled
from flows.deployed.console import outlive_reader
from flows.guard.job_variables import replaced_command
from flows.pages.log import log_errors_once
from flows.pages.names import profile_among
from flows.stop import AGAIN
from storage.errors import ConfigError, GristmillError, ServerError
from tasks.stage.display.pages import interrupts

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

P = ParamSpec("P")
R = TypeVar("R")


def told(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a flow's function: an error or a cancellation becomes its run's state. The flow's caller gets the error
    itself."""
    log_errors_once()  # now, as Prefect checks parameters before the function runs

    @functools.wraps(function)
    def run(*arguments: P.args, **named: P.kwargs) -> R:
        if _is_deployed():
            outlive_reader()
        try:
            _check_command()
            with ended_when_cancelled(), _tagged():
                return function(*arguments, **named)
        except GristmillError as error:
            return cast(R, failed(error))
        except httpx.HTTPError as error:
            if not _is_deployed():
                raise  # the flow's caller knows the server
            return cast(R, failed(server_is_away(error)))
        except interrupts() as error:
            state = cancelled(error)
            if state is None:
                raise
            return cast(R, state)

    # Otherwise Prefect resolves the names in the annotations in this module
    run.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    return run


def failed(error: GristmillError) -> State[None]:
    """The failed state, with the error as its result. The engine of a worker's process raises it again, and would log
    its traceback."""
    from prefect import get_run_logger
    from prefect.states import Failed

    get_run_logger().error("%s", error)
    return Failed(message=error.on_page, data=error)


def server_is_away(error: httpx.HTTPError) -> ServerError:
    """The error of a deployment's run whose request failed."""
    said = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
    address = os.environ.get("PREFECT_API_URL", "")
    return ServerError(f"The Prefect server at {address} did not answer the run: {said}.", AGAIN)


def _is_deployed() -> bool:
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    return context is not None and context.flow_run is not None and context.flow_run.deployment_id is not None


def _check_command() -> None:
    """Raises ConfigError for a run whose job variables replace its command. A server of ours refuses such a run,
    another may not."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None and replaced_command(context.flow_run.job_variables):
        raise ConfigError("The job variables of this run replace its command.", "Rerun it without `command`.")


def _tagged() -> AbstractContextManager[object]:
    """Tag the flow run with its profile, and its tasks within the block. It already has its deployment's tags."""
    from prefect import tags
    from prefect.client.orchestration import get_client
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return nullcontext()
    profile = profile_among(context.parameters or {})
    if not profile:
        return nullcontext()
    with get_client(sync_client=True) as client:
        client.update_flow_run(context.flow_run.id, tags={*context.flow_run.tags, profile})
    return tags(profile)
