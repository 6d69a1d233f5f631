"""The side of the run: its stages that the profile gives to work pools are made there, and only awaited here.

Before the first stage is made, each pool that will be needed must be there, with a deployment of `sent-stage`; and
where the store is a folder, a worker of each pool must see it, with the same code, as workers of Dask and Ray must
(tasks/shards/worker_checks.py). A stage that is in the store never goes to a pool.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

from pydantic import TypeAdapter

from flows.pools.runs import Pool, SentRun, pools_of_server
from flows.pools.stage_job import Order, Work
from profiles.schema import Profile
from storage.errors import ConfigError
from tasks.shards.worker_checks import Witness, check_workers
from tasks.stage.config import StageConfig
from tasks.stage.protocol import AnyStage, Input
from tasks.stage.session import Maker, Session, current

WITNESS = TypeAdapter(Witness)
PROBES = "probes"  # in the store, for as long as a pool is asked whether it sees it


def pools_of(profile: Profile, stages: Iterable[str]) -> list[str]:
    """The work pools that stages would be given to. Raises ConfigError where there are any, but no server to ask."""
    named = list(dict.fromkeys(pool for name in stages if (pool := profile.pool_of(name))))
    if named and not os.environ.get("PREFECT_API_URL"):
        raise ConfigError(
            f"runtime.pools gives stages to {', '.join(named)}, but the run has no Prefect server to ask.",
            "Set PREFECT_API_URL to that of the pools' server, or leave runtime.pools out.",
        )
    return named


class Elsewhere:
    """Who makes the stages of a run. `whole` gives the stage whose section of the profile a stage has."""

    def __init__(self, profile: Profile, until: str | None, whole: Callable[[str], str]) -> None:
        names = profile.stage_names
        self._names = names[: names.index(until) + 1] if until in names else names
        self._profile, self._whole = profile, whole
        self._pools: dict[str, Pool] | None = None

    def __call__(self, stage: str) -> Maker | None:
        """For a stage that must be made: what has it made by a work pool, or None where the run makes it itself.

        Raises ConfigError and PoolError for pools that can't be used; asked before the first stage is made.
        """
        session = current()
        assert session is not None
        name = self._whole(stage)
        if self._pools is None:
            later = self._names[self._names.index(name) :] if name in self._names else self._names
            self._pools = self._checked(session, stage, later)
        pool = self._pools.get(self._profile.pool_of(name) or "")
        if pool is None:
            return None
        wait = 60 * self._profile.runtime.pools.wait_minutes

        def make(asked: AnyStage, key: str, config: StageConfig, inputs: Sequence[Input], refresh: bool) -> str:
            anew = [*session.refresh, asked.name] if refresh else list(session.refresh)
            order = Order.of(session, work=Work.of_call(asked, key, config, inputs, {*anew}))
            title = f"{session.profile}: {asked.name}"
            with SentRun(pool, title, order, functools.partial(session.observer.noted, asked.name)) as run:
                return run.result(wait)

        return make

    def _checked(self, session: Session, stage: str, later: Sequence[str]) -> dict[str, Pool]:
        """The pools of stages that may be made yet, all of which can be used."""
        named = pools_of(self._profile, later)
        if not named:
            return {}
        pools = {pool.name: pool for pool in pools_of_server(named)}
        store = session.store
        if store.is_folder:
            store.begin()
            (store.local / PROBES).mkdir(exist_ok=True)
            check_workers(store.local / PROBES, lambda place: self._witnesses(session, stage, place, [*pools.values()]))
        return pools

    def _witnesses(self, session: Session, stage: str, place: str, pools: Sequence[Pool]) -> Iterator[Witness]:
        wait = 60 * self._profile.runtime.pools.wait_minutes
        order = Order.of(session, folder=os.path.abspath(place))
        with ExitStack() as runs:
            asked = [runs.enter_context(SentRun(pool, "can it see the store?", order)) for pool in pools]
            for pool, run in zip(pools, asked, strict=True):
                said = run.result(wait, begin_within=wait)
                if said is None:
                    session.observer.noted(
                        stage, f"workers of {pool.name} are busy: not checked whether they see the store"
                    )
                else:
                    yield WITNESS.validate_json(said)
