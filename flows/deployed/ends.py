"""How a flow run ends before its time: by an error that a person can mend, Failed, with two sentences and no traceback
on its page; cancelled there, in order, whoever started it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from flows.deployed.cancelled import ended_when_cancelled
from flows.pages.log import tell_once
from storage.errors import GristmillError

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

P = ParamSpec("P")
R = TypeVar("R")


def told(function: Callable[P, R]) -> Callable[P, R]:
    """A flow's function that ends in the state of its error, and when it is cancelled. Whoever calls the flow is raised
    the error itself."""

    @functools.wraps(function)
    def run(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            with ended_when_cancelled():
                return function(*arguments, **named)
        except GristmillError as error:
            return cast(R, failed(error))

    # Prefect would look for the names in the annotations among those of this module
    run.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    return run


def failed(error: GristmillError) -> State[None]:
    """The state, with the error as its result. The engine of a worker's process raises it once more, and would log
    from where."""
    from prefect import get_run_logger
    from prefect.states import Failed

    tell_once()
    get_run_logger().error("%s", error)
    return Failed(message=error.on_page, data=error)
