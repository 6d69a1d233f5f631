"""The run's side of work pools: sends the stages that the profile assigns to a pool, and waits for them.

Before the first stage is made, each pool that will be needed must exist, with a deployment of `sent-stage`. If the
store is a folder, a worker of each pool must see it and have the same code, as workers of Dask and Ray must
(tasks/shards/worker_checks.py). A stored stage never goes to a pool.
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
PROBES = "probes"  # a folder of the store, while pools are asked whether they see it


def pools_of(profile: Profile, stages: Iterable[str]) -> list[str]:
    """The work pools of these stages. Raises ConfigError if there are any, but no server to ask."""
    named = list(dict.fromkeys(pool for name in stages if (pool := profile.pool_of(name))))
    if named and not os.environ.get("PREFECT_API_URL"):
        raise ConfigError(
            f"runtime.pools sends stages to {', '.join(named)}, but PREFECT_API_URL is not set.",
            "Set it to the pools' Prefect server, or remove runtime.pools.",
        )
    return named


class Elsewhere:
    """Sends stages of a run to pools. `whole` maps a stage, or a part of one, to the stage of its profile section."""

    def __init__(self, profile: Profile, until: str | None, whole: Callable[[str], str]) -> None:
        names = profile.stage_names
        self._names = names[: names.index(until) + 1] if until in names else names
        self._profile, self._whole = profile, whole
        self._pools: dict[str, Pool] | None = None

    def __call__(self, stage: str) -> Maker | None:
        """A function that has a work pool make the stage, or None if the run makes it itself.

        The first call checks all pools of this and later stages. Raises ConfigError and PoolError for unusable pools.
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

        def make(made: AnyStage, key: str, config: StageConfig, inputs: Sequence[Input], refresh: bool) -> str:
            rebuilt = [*session.refresh, made.name] if refresh else list(session.refresh)
            order = Order.of(session, work=Work.of_call(made, key, config, inputs, {*rebuilt}))
            title = f"{session.profile}: {made.name}"
            with SentRun(pool, title, order, functools.partial(session.observer.noted, made.name)) as run:
                return run.result(wait)

        return make

    def _checked(self, session: Session, stage: str, later: Sequence[str]) -> dict[str, Pool]:
        """The pools of this and `later` stages, checked to be usable."""
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
            probes = [runs.enter_context(SentRun(pool, "can it see the store?", order)) for pool in pools]
            for pool, run in zip(pools, probes, strict=True):
                answer = run.result(wait, begin_within=wait)
                if answer is None:
                    session.observer.noted(
                        stage, f"workers of {pool.name} are busy: not checked whether they see the store"
                    )
                else:
                    yield WITNESS.validate_json(answer)
