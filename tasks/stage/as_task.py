"""A stage as a Prefect task. A stored artifact ends in Prefect's state *Cached*.

Only the store decides what is a hit: Prefect's own result cache is not used, and its `refresh_cache` is honoured.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from storage.artifact import Artifact
from storage.errors import GristmillError
from storage.files.remote import may_pass
from storage.units import duration
from tasks.stage.config import StageConfig
from tasks.stage.display.pages import KEY_SHOWN, in_state, publish_page
from tasks.stage.making import MakingStage
from tasks.stage.protocol import Input
from tasks.stage.session import Step, current

RETRY_SECONDS = (30, 120, 600)  # between attempts, after a network or server outage


def task_of(stage: MakingStage) -> Any:
    """A Prefect task that obtains one artifact of a stage."""

    def run(config: StageConfig, *inputs: Input) -> Any:
        from prefect.context import TaskRunContext
        from prefect.states import Completed

        context = TaskRunContext.get()
        refresh = bool(context and context.task.refresh_cache)
        artifact, cached = stage.materialize(config, inputs, refresh=refresh)
        step = _publish_page(stage)
        if cached:
            return Completed(name="Cached", message=_where(artifact), data=artifact)
        return Completed(message=f"Made in {duration(step.worked)}: {step.why}.", data=artifact)

    return _task(stage, run, lambda parameters: _run_name(stage, parameters["config"], parameters["inputs"]))


def task_of_several(stage: MakingStage) -> Any:
    """As `task_of`, for several artifacts that are made together."""

    def run(calls: Sequence[tuple[StageConfig, Sequence[Input]]]) -> Any:
        from prefect.states import Completed

        results = stage.materialize_all(calls)
        _publish_page(stage)
        artifacts, made = [artifact for artifact, _ in results], sum(not cached for _, cached in results)
        message = f"{made} made, {len(results) - made} from the store."
        return Completed(name=None if made else "Cached", message=message, data=artifacts)

    return _task(stage, run, lambda parameters: _run_name(stage, None, (), f"({len(parameters['calls'])})"))


def _task(stage: MakingStage, run: Callable[..., Any], run_name: Callable[[dict[str, Any]], str]) -> Any:
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    def named(parameters: dict[str, Any]) -> str:  # Prefect passes the parameters to an argument of this name
        return run_name(parameters)

    as_task = task(
        name=stage.name,
        task_run_name=cast(Any, named),
        tags=[stage.name],
        description=inspect.getdoc(stage.function) or stage.name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=0 if stage.part_of else len(RETRY_SECONDS),  # a part is retried with its stage
        retry_delay_seconds=list(RETRY_SECONDS),
        retry_condition_fn=_may_retry,
    )
    return as_task(in_state(run))


def _may_retry(task: Any, run: Any, state: Any) -> bool:
    """Whether to retry: a deployed run failed on a network or server outage. At a terminal somebody sees the error and
    decides."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    deployed = context is not None and context.flow_run is not None and context.flow_run.deployment_id is not None
    return deployed and may_pass(state.data)


def _run_name(stage: MakingStage, config: StageConfig | None, inputs: Sequence[Input], number: str = "") -> str:
    """A task run's name: profile, stage, and the beginning of the artifact's key if it can be known."""
    session = current()
    name = session.name_of(stage.name) if session else stage.name
    if config is not None:
        with suppress(GristmillError):  # the task fails on the same error as soon as it runs
            number = stage.payload(config, inputs).key()[:KEY_SHOWN]
    return " ".join(part for part in (session.profile if session else "", name, number) if part)


def _publish_page(stage: MakingStage) -> Step:
    """Show what the run has just taken or made of a stage."""
    session = current()
    assert session is not None
    name = session.name_of(stage.name)
    session.pages[name] = publish_page(name, session)
    return session.steps[name]


def _where(artifact: Artifact) -> str:
    adopted = artifact.manifest.adopted if artifact.manifest else ""
    return f"{artifact.location} was in the store{f', {adopted}' if adopted else ''}."
