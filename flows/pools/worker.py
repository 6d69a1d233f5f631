"""The flow of a work pool's deployment: makes one stage, from inputs in the store, for a run elsewhere."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

import flows.pipeline  # noqa: F401, registers the stages
from flows.deployed.run_lifecycle import told
from flows.pages.progress import PrefectObserver
from flows.pools.stage_job import Order, Work
from storage.credentials import guard
from storage.errors import PoolError
from storage.store import Store
from tasks.shards.broadcast import code_digest
from tasks.shards.worker_checks import check_alike, libraries, witness
from tasks.stage.decorator import STAGES
from tasks.stage.runtime import Runtime
from tasks.stage.session import Session, open_session


@flow(name="sent-stage")
@told
def sent_stage(order: Order) -> State[None]:
    """Make a stage that a run elsewhere sent. Started by runs, not by hand: see runtime.pools."""
    guard()
    # The message carries the location of the artifact, or what the witness saw, as Prefect does not keep results
    if order.work is None:
        return Completed(message=json.dumps(asdict(witness(order.folder))))
    return Completed(message=make_stage(order, order.work))


def make_stage(order: Order, work: Work) -> str:
    """The location of the stage's artifact, made now or stored. Raises what the stage raises, and ConfigError and
    PoolError for a machine that could make another artifact than the run expects."""
    host = socket.gethostname()
    check_alike(host, (code_digest(), libraries()), (order.code, order.libraries))
    store = Store(order.store)
    store.check_exists()
    stage = STAGES[work.stage]
    config, inputs = work.call(stage, store)
    session = Session(
        store, Runtime.model_validate(order.runtime), order.profile, frozenset(work.refresh), PrefectObserver()
    )
    with open_session(session):
        key = stage.payload(config, inputs).key()
        if key != work.key:
            raise PoolError(
                f"{work.stage} has key {key[:8]} on {host}, but {work.key[:8]} in the run.",
                "What it reads from outside the store (files, models, a salt) must be the same on both machines.",
            )
        return stage(config, *inputs).location
