"""A person's approval before a dear stage is made: runtime.approve.

Asked only where the stage is not in the store. At a terminal with y or n; on the page of a run of a Prefect server by
its Resume, for which the run waits in this process, in the state *Paused*. A run that a schedule started has nobody
who would look, so it is not held.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from flows.deployed.cancelled import end_as_cancelled
from flows.pages.progress import TerminalObserver
from profiles.schema import Profile
from storage.errors import ApprovalError, ConfigError
from storage.keys import KeyPayload
from storage.units import duration
from tasks.stage.history import nearest
from tasks.stage.protocol import AnyStage
from tasks.stage.session import current

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State

POLL_SECONDS = 2.0
LATER_SECONDS = 3600  # the server gives up after the run itself, whose sentence says more
AGAIN = "Run it again: what is finished is taken from the store, and you are asked anew."


@dataclass(frozen=True)
class OnPage:
    """Asks on the page of the current flow run."""

    profile: Profile

    def __call__(self, stage: AnyStage, payload: KeyPayload) -> None:
        """Return once somebody has pressed Resume. Raises ApprovalError where nobody does in time."""
        wait_for_resume(stage.name, f"must be made{cost(self.profile, payload)}", self.profile.runtime.approve_hours)


@dataclass(frozen=True)
class AtTerminal:
    """Asks at the terminal; where there is none, on the page of a run that a server of somebody's shows."""

    profile: Profile
    observer: TerminalObserver

    def __call__(self, stage: AnyStage, payload: KeyPayload) -> None:
        """Return for a yes. Raises ApprovalError for a no, ConfigError where nobody can be asked."""
        if sys.stdin.isatty():
            self.observer.close()
            if not typer.confirm(f"{stage.name} must be made{cost(self.profile, payload)}. Make it?"):
                raise ApprovalError(f"{stage.name} was not approved, so it is not made.", AGAIN)
        elif os.environ.get("PREFECT_API_URL"):
            OnPage(self.profile)(stage, payload)
        else:
            raise ConfigError(
                f"runtime.approve asks before {stage.name}, and nobody is there to be asked.",
                "Say --yes if it may be made, run it at a terminal, or set PREFECT_API_URL to approve it on a page.",
            )


def cost(profile: Profile, payload: KeyPayload) -> str:
    """What a stage is likely to take, as the end of a sentence; nothing where that can't be told."""
    session = current()
    earlier = nearest(session.store, payload) if session else None
    if earlier is not None and "seconds" in earlier.facts:
        return f", which took {duration(float(earlier.facts['seconds']))} the last time"
    if payload.stage == "pretrain":
        from flows.arithmetic import training_plan

        hours = training_plan(profile).bill.hours
        return f", about {duration(hours * 3600)} by arithmetic" if hours is not None else ""
    return ""


def wait_for_resume(name: str, what: str, hours: float, *, always: bool = False) -> None:
    """Pause the current flow run until somebody resumes it, unless a schedule has started it and it is not `always`.

    Raises ApprovalError where nobody does within `hours`, or the run is ended on its page; ConfigError outside a run.
    """
    from prefect.client.orchestration import get_client
    from prefect.context import FlowRunContext
    from prefect.states import Paused

    session, context = current(), FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise ConfigError(
            f"{name} waits for approval, but there is no flow run to resume.", "Leave runtime.approve out."
        )

    def told(said: str) -> None:
        if session:
            session.observer.noted(name, said)

    run = context.flow_run
    if run.auto_scheduled and not always:
        told("goes on without approval: a schedule has started this run")
        return
    told(f"{what}. Press Resume to go on, Cancel to end the run: it waits for {duration(hours * 3600)}")
    with get_client(sync_client=True) as client:
        paused: State[None] = Paused(
            timeout_seconds=int(hours * 3600) + LATER_SECONDS, reschedule=False, pause_key=f"approve-{name}"
        )
        paused.message = f"{name} {what}. Resume goes on, Cancel ends the run."
        client.set_flow_run_state(run.id, paused)
        deadline = time.monotonic() + hours * 3600
        while _waits(client.read_flow_run(run.id), name):
            if time.monotonic() > deadline:
                raise ApprovalError(f"Nobody has approved {name} within {duration(hours * 3600)}.", AGAIN)
            time.sleep(POLL_SECONDS)
    told("approved")


def _waits(run: FlowRun, name: str) -> bool:
    """Whether a run still waits. One that is cancelled ends this process as a worker would end it, which a run of a
    terminal has not."""
    state = run.state
    assert state is not None
    if state.is_cancelling():
        end_as_cancelled(run.id)
    elif state.is_final():
        raise ApprovalError(f"{name} was not approved: the run is {str(state.name).lower()}.", AGAIN)
    return not state.is_running()
