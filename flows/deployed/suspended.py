"""A run of a deployment that waits for a person without a process: Prefect's *Suspended*.

The run ends, and Resume has a worker start it again, with finished stages from the store. So it occupies no slot of its
pool, worker or deployment, and survives the death of the whole machine. In Prefect's *Paused* a process waits and
occupies a place of its worker. Worse, the server takes back the run's slot in its deployment's concurrency limit, and
Prefect's engine ends the run when it tries to renew the slot.

The automation for dead runs (automations.py) hears of the wait twice. The server sends an event, but only after that of
the previous state, and late if SQLite was locked. The ending process sends another, after Prefect's heartbeat, which
would restart the silence, has stopped.
"""

from __future__ import annotations

import atexit
import math
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import httpx

from flows.server import patient_client

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import State

ANSWERS = "Resume goes on, Cancel ends the run."
WAITS = "gristmill.flow-run.waits"  # an event


def suspend(
    client: SyncPrefectClient, run: UUID, message: str, seconds: float, key: str, before: Callable[[], None]
) -> None:
    """Return if a person has resumed the run from `key`. Otherwise call `before` and raise Prefect's Pause, which ends
    the process. The server fails a run that nobody resumes within `seconds`."""
    from prefect.exceptions import Pause
    from prefect.states import Suspended
    from prefect.utilities.engine import propose_state_sync

    waits = _waits(client, run, key)
    if any(waits):
        return
    # The server takes a key only once, even if nobody resumed from it. But a cancelled or failed run can be rerun, so
    # each wait has its own key
    state: State[None] = Suspended(timeout_seconds=math.ceil(seconds), pause_key=f"{key}-{len(waits)}")
    state.message = message
    answered = propose_state_sync(client, state, run)
    if answered.is_paused():
        atexit.register(_say_it_waits, run)
        before()
        raise Pause(state=answered)


def _waits(client: SyncPrefectClient, run: UUID, key: str) -> list[bool]:
    """For each wait of the run with `key`, whether it was resumed."""
    states = sorted(client.read_flow_run_states(run), key=lambda state: state.timestamp)
    return [
        after.is_scheduled()
        for state, after in pairwise(states)
        if (state.state_details.pause_key or "").rpartition("-")[0] == key
    ]


def _say_it_waits(run: UUID) -> None:
    if "PREFECT_API_URL" not in os.environ:  # a worker sets it for every run
        return
    event = {
        "event": WAITS,
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "resource": {"prefect.resource.id": f"prefect.flow-run.{run}"},
    }
    with suppress(httpx.HTTPError), patient_client(os.environ) as client:  # the server's own event may be enough
        client.post("/events", json=[event]).raise_for_status()
