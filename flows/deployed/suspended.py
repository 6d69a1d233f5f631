"""A run of a deployment that waits for a person without a process: Prefect's *Suspended*.

It ends, and Resume has a worker begin it again; what it has made by then comes from the store. So it keeps no slot of
its pool, of its worker or of its deployment, and outlives whatever dies meanwhile, a whole machine too. In Prefect's
*Paused* a process waits, which takes a place of its worker. Worse, the server takes back the slot that a run has by the
concurrency limit of its deployment, and Prefect's engine ends the run when it comes to renew it.

What the automation for dead runs (automations.py) must hear of is said twice: by the server, whose event of a new state
waits for that of the state before, and is late where SQLite was locked just then; and by the process as it ends, when
Prefect's heartbeat, which would begin the silence anew, has stopped.
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
    client: SyncPrefectClient, run: UUID, message: str, seconds: float, key: str, told: Callable[[], None]
) -> None:
    """Return where a person has resumed the run from `key` before. Else calls `told` and raises Prefect's Pause, which
    ends its process; the server fails a run that nobody resumes within `seconds`."""
    from prefect.exceptions import Pause
    from prefect.states import Suspended
    from prefect.utilities.engine import propose_state_sync

    before = _asked(client, run, key)
    if any(before):
        return
    # The server takes a key once, though nobody resumed from it: a run that was cancelled or failed may be run again
    state: State[None] = Suspended(timeout_seconds=math.ceil(seconds), pause_key=f"{key}-{len(before)}")
    state.message = message
    answered = propose_state_sync(client, state, run)
    if answered.is_paused():
        atexit.register(_say_it_waits, run)
        told()
        raise Pause(state=answered)


def _asked(client: SyncPrefectClient, run: UUID, key: str) -> list[bool]:
    """For each time that the run has waited with `key`, whether it was resumed then."""
    states = sorted(client.read_flow_run_states(run), key=lambda state: state.timestamp)
    return [
        after.is_scheduled()
        for state, after in pairwise(states)
        if (state.state_details.pause_key or "").rpartition("-")[0] == key
    ]


def _say_it_waits(run: UUID) -> None:
    if "PREFECT_API_URL" not in os.environ:  # which a worker gives all that it starts
        return
    event = {
        "event": WAITS,
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "resource": {"prefect.resource.id": f"prefect.flow-run.{run}"},
    }
    with suppress(httpx.HTTPError), patient_client(os.environ) as client:  # the server's own event may have been enough
        client.post("/events", json=[event]).raise_for_status()
