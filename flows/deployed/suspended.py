"""A run of a deployment that waits for a person without a process: Prefect's *Suspended*.

It ends, and Resume has a worker begin it again; what it has made by then comes from the store. So it keeps no slot of
its pool, of its worker or of its deployment, and outlives whatever dies meanwhile, a whole machine too. In Prefect's
*Paused* a process waits, which takes a place of its worker. Worse, the server takes back the slot that a run has by the
concurrency limit of its deployment, and Prefect's engine ends the run when it comes to renew it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import State

ANSWERS = "Resume goes on, Cancel ends the run."


def suspend(
    client: SyncPrefectClient, run: UUID, message: str, seconds: float, key: str, told: Callable[[], None]
) -> None:
    """Return where the run has been resumed from `key` before. Else calls `told` and raises Prefect's Pause, which ends
    its process; the server fails a run that nobody resumes within `seconds`."""
    from prefect.exceptions import Pause
    from prefect.states import Suspended
    from prefect.utilities.engine import propose_state_sync

    state: State[None] = Suspended(timeout_seconds=math.ceil(seconds), pause_key=key)
    state.message = message
    answered = propose_state_sync(client, state, run)
    if answered.is_paused():
        told()
        raise Pause(state=answered)


def waits_for(error: BaseException | None) -> str:
    """What a run waits for that has ended by being suspended, as a sentence; nothing of any other end."""
    if error is None or "prefect" not in sys.modules:
        return ""
    from prefect.exceptions import Pause

    return str(error.state.message) if isinstance(error, Pause) and error.state is not None else ""
