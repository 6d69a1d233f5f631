"""A person's approval before an expensive stage is made: runtime.approve.

Asks only if the stage is not in the store: at a terminal with y or n, on a Prefect server by Resume on the run's page.
A deployment's run waits without a process, *Suspended* (suspended.py). A run of a terminal, which nobody could restart,
waits in its own process, *Paused*. A scheduled run is not held, as nobody watches it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flows.deployed.suspended import ANSWERS, suspend
from flows.pages.progress import TerminalObserver
from profiles.schema import Profile
from storage.errors import ApprovalError, ConfigError
from storage.keys import KeyPayload
from storage.units import duration
from tasks.stage.config import StageConfig
from tasks.stage.history import nearest
from tasks.stage.protocol import AnyStage, Input
from tasks.stage.session import current

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

POLL_SECONDS = 2.0
LATER_SECONDS = 3600  # the server gives up after the run itself, whose message says more
PERSON = "a person's approval"
AGAIN = "Run it again: finished stages come from the store, and you are asked again."


@dataclass(frozen=True)
class OnPage:
    """Asks on the page of the current flow run."""

    profile: Profile

    def __call__(self, stage: AnyStage, config: StageConfig, inputs: Sequence[Input], payload: KeyPayload) -> None:
        """Return once somebody presses Resume. Raises what `wait_for_resume` raises."""
        must = f"must be made{cost(self.profile, stage, config, inputs, payload)}"
        wait_for_resume(stage.name, must, self.profile.runtime.approve_hours, of=payload.key())


@dataclass(frozen=True)
class AtTerminal:
    """Asks at the terminal, or without one on the run's page if PREFECT_API_URL names a server."""

    profile: Profile
    observer: TerminalObserver

    def __call__(self, stage: AnyStage, config: StageConfig, inputs: Sequence[Input], payload: KeyPayload) -> None:
        """Return for a yes. Raises ApprovalError for a no, ConfigError if nobody can be asked."""
        if sys.stdin.isatty():
            if session := current():
                session.observer.waiting(stage.name, PERSON)
            self.observer.close()
            must = f"must be made{cost(self.profile, stage, config, inputs, payload)}"
            if not _agreed(f"{stage.name} {must}. Make it? [y/N] "):
                raise ApprovalError(f"{stage.name} was not approved.", AGAIN)
        elif os.environ.get("PREFECT_API_URL"):
            OnPage(self.profile)(stage, config, inputs, payload)
        else:
            raise ConfigError(
                f"runtime.approve asks before {stage.name}, but there is no terminal to ask at.",
                "Give --yes to approve it, run at a terminal, or set PREFECT_API_URL to approve on a page.",
            )


def _agreed(question: str) -> bool:
    """Whether a person at the terminal says yes. The end of the input is a no. Ctrl-C ends the run as usual: click's
    own prompt would turn it into another error."""
    while True:
        try:
            answer = input(question).strip().lower()
        except EOFError:
            return False
        if answer in ("y", "yes"):
            return True
        if answer in ("", "n", "no"):
            return False
        print("Answer y for yes or n for no.")


def cost(profile: Profile, stage: AnyStage, config: StageConfig, inputs: Sequence[Input], payload: KeyPayload) -> str:
    """The time that `gristmill plan` expects of a stage, as the end of a sentence, or empty if it is unknown."""
    from flows.estimates.arithmetic import gpu_of, training_work
    from flows.estimates.planned_stage import PlannedStage
    from flows.estimates.stages import estimates

    session = current()
    if session is None:
        return ""
    earlier, refresh = nearest(session.store, payload), frozenset(session.refresh)
    line = PlannedStage(stage.name, False, "", payload, earlier, tuple(inputs), config, refresh=refresh)
    gpu = gpu_of(profile.runtime)
    work = training_work(profile, cuda=gpu is not None)
    expected = estimates(profile, session.store, [line], work, gpu).get(stage.name)
    return f", about {duration(expected.seconds)} ({expected.source})" if expected else ""


def wait_for_resume(name: str, what: str, hours: float, *, of: str, always: bool = False) -> None:
    """Have the current flow run wait until somebody resumes it; a scheduled run only if `always`.

    `of` is the key or the digest of what is approved: a restarted run asks again only for what has changed meanwhile.
    Raises Prefect's Pause, which ends the process of a deployment's run; ApprovalError if nobody resumes within
    `hours`, or the run is ended on its page; ConfigError outside a run.
    """
    from prefect.client.orchestration import get_client
    from prefect.context import FlowRunContext

    from flows.pages.progress import PrefectObserver

    session, context = current(), FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise ConfigError(f"{name} waits for approval, but no flow run could be resumed.", "Remove runtime.approve.")

    observer = session.observer if session else PrefectObserver()  # of a promotion, which has no stages

    def note(message: str) -> None:
        observer.noted(name, message)

    run = context.flow_run
    if run.auto_scheduled and not always:
        note("goes on without approval: a schedule started this run")
        return
    ask = f"{what}. {ANSWERS}"
    limit = f"it waits for {duration(hours * 3600)}"
    with get_client(sync_client=True) as client:
        if run.deployment_id is not None:
            suspend(client, run.id, f"{name} {ask}", hours * 3600, f"{name}-{of}", lambda: note(f"{ask} {limit}."))
        else:
            note(f"{ask} {limit}.")
            observer.waiting(name, PERSON)
            _pause(client, run, name, ask, hours)
    note("approved")


def _pause(client: SyncPrefectClient, run: FlowRun, name: str, ask: str, hours: float) -> None:
    """Return once the run is resumed. Raises ApprovalError. A cancelled run ends as at any other time."""
    from prefect.states import Paused

    paused: State[None] = Paused(timeout_seconds=int(hours * 3600) + LATER_SECONDS, reschedule=False)
    paused.message = f"{name} {ask}"
    client.set_flow_run_state(run.id, paused)
    deadline = time.monotonic() + hours * 3600
    while True:
        state = client.read_flow_run(run.id).state
        assert state is not None
        if state.is_running():
            return
        if state.is_final():
            raise ApprovalError(f"{name} was not approved: the run is {str(state.name).lower()}.", AGAIN)
        if time.monotonic() > deadline:
            raise ApprovalError(f"Nobody approved {name} within {duration(hours * 3600)}.", AGAIN)
        time.sleep(POLL_SECONDS)
