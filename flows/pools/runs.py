"""A run of a work pool's deployment, from its creation to its end, through Prefect's API.

Prefect shows it as part of the stage's task. Whatever interrupts the waiting run cancels it, except SIGKILL, after
which it goes on and leaves its artifact in the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, overload
from uuid import UUID

import httpx

from flows.guard.job_variables import replaced_command, template_replaces_command
from flows.pools.stage_job import Order
from storage.errors import REMEDY, ConfigError, PoolError
from storage.units import duration

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

FLOW = "sent-stage"
POLL_SECONDS = (0.5, 5.0)  # between two reads of a run's state: at first, and at most
RECORDED_SECONDS = 10.0  # until the server, which learns of task runs by events, has one in its database
RERUN = "Run it again: finished stages come from the store."


@dataclass(frozen=True)
class Pool:
    """A work pool and its deployment of `sent-stage`."""

    name: str
    deployment: UUID


def pools_of_server(names: Sequence[str]) -> list[Pool]:
    """The work pools of these names. Raises ConfigError if one does not exist, is paused, has no deployment, or has
    workers that would run another command."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName, WorkPoolFilter, WorkPoolFilterName
    from prefect.exceptions import ObjectNotFound

    pools = []
    with get_client(sync_client=True) as client:
        for name in names:
            try:
                pool = client.read_work_pool(name)
            except ObjectNotFound:
                existing = ", ".join(sorted(each.name for each in client.read_work_pools()))
                raise ConfigError(
                    f"runtime.pools names the work pool {name}, but the server at {client.api_url} has {existing}.",
                    f"Correct the name, or create it: prefect work-pool create {name} --type process",
                ) from None
            if pool.is_paused:
                raise ConfigError(f"The work pool {name} is paused.", f"prefect work-pool resume {name}")
            deployments = client.read_deployments(
                flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW])),
                work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[name])),
            )
            if not deployments:
                raise ConfigError(
                    f"The work pool {name} has no deployment of {FLOW}.",
                    f"prefect --no-prompt deploy flows.pools.worker.sent_stage --name {name} --pool {name}",
                )
            if template_replaces_command(pool.base_job_template) or replaced_command(deployments[0].job_variables):
                raise ConfigError(
                    f"The work pool {name} starts runs with another command than Prefect's.",
                    f"Remove `command` from its base job template and from the job variables of {deployments[0].name}, "
                    "or use the template from Gristmill's folder deploy.",
                )
            pools.append(Pool(name, deployments[0].id))
    return pools


class SentRun:
    """A run for a worker to take. The end of the block cancels it if it still runs. With a `note`, which receives
    messages for the person who waits, Prefect shows it as part of the current task."""

    def __init__(self, pool: Pool, title: str, order: Order, note: Callable[[str], None] | None = None) -> None:
        from prefect.client.orchestration import get_client

        self._pool, self._title, self._order = pool, title, order
        self._shown, self._note = note is not None, note or (lambda said: None)
        self._opened = get_client(sync_client=True)
        self._run: FlowRun | None = None
        self._ended = False

    def __enter__(self) -> SentRun:
        self._client: SyncPrefectClient = self._opened.__enter__()
        self._run = self._client.create_flow_run_from_deployment(
            self._pool.deployment,
            parameters={"order": self._order.model_dump(mode="json")},
            name=self._title,
            parent_task_run_id=_task_run(self._client) if self._shown else None,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from prefect.states import Cancelling

        try:
            if self._run is not None and not self._ended:
                with suppress(httpx.HTTPError):  # a dead server can't cancel anything
                    self._client.set_flow_run_state(self._run.id, Cancelling())
        finally:
            self._opened.__exit__(kind, error, trace)

    @property
    def page(self) -> str:
        """The address of the run's page."""
        from prefect.utilities.urls import url_for

        assert self._run is not None
        return url_for("flow-run", self._run.id) or str(self._run.id)

    @overload
    def result(self, wait: float) -> str: ...
    @overload
    def result(self, wait: float, *, begin_within: float) -> str | None: ...
    def result(self, wait: float, *, begin_within: float | None = None) -> str | None:
        """The message of the completed run, or None if workers are online but none starts it in `begin_within` seconds.

        Raises PoolError if it fails, or if the pool has no worker for `wait` seconds.
        """
        self._note(f"runs in the work pool {self._pool.name}: {self.page}")
        began = online = time.monotonic()
        pause, begun = POLL_SECONDS[0], False
        while True:
            state = self._state()
            if state.is_final():
                self._ended = True
                return self._message(state)
            now = time.monotonic()
            if self._has_worker():
                online = now
            elif now - online > wait:
                raise PoolError(
                    f"The work pool {self._pool.name} had no worker for {duration(now - online)}, so `{self._title}` "
                    "was given up.",
                    f"Start one on the machine that should run it: prefect worker start --pool {self._pool.name}. "
                    f"{RERUN}",
                )
            if state.is_running() and not begun:
                begun = True
                self._note(f"a worker of {self._pool.name} started it")
            if begin_within is not None and not begun and now - began > begin_within:
                return None
            time.sleep(pause)
            pause = min(1.2 * pause, POLL_SECONDS[1])

    def _state(self) -> State:
        from prefect.exceptions import ObjectNotFound

        assert self._run is not None
        try:
            state = self._client.read_flow_run(self._run.id).state
        except ObjectNotFound:
            self._ended = True
            raise PoolError(f"Somebody deleted the run of `{self._title}`, {self.page}.", RERUN) from None
        assert state is not None
        return state

    def _message(self, state: State) -> str:
        message = state.message or ""
        if state.is_completed():
            return message
        problem, _, remedy = message.partition(REMEDY)
        failure = f"{'crashed' if state.is_crashed() else 'failed'}: {problem}"
        how = "was cancelled" if state.is_cancelled() else failure
        raise PoolError(
            f"`{self._title}` in the work pool {self._pool.name} {how.rstrip('. ')}. Its page: {self.page}",
            remedy or f"Its logs say more. {RERUN}",
        )

    def _has_worker(self) -> bool:
        workers = self._client.read_workers_for_work_pool(self._pool.name)
        return any(worker.status.value == "ONLINE" for worker in workers)


def _task_run(client: SyncPrefectClient) -> UUID | None:
    """The current task run, once the server knows it."""
    from prefect.context import TaskRunContext
    from prefect.exceptions import ObjectNotFound

    context = TaskRunContext.get()
    deadline = time.monotonic() + RECORDED_SECONDS
    while context is not None and time.monotonic() < deadline:
        with suppress(ObjectNotFound):
            return client.read_task_run(context.task_run.id).id
        time.sleep(0.2)
    return None
