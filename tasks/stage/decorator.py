"""@stage: a plain function becomes a cached stage of the pipeline.

    @stage(version=1, runtime=("data",))
    def dedup(config: DedupConfig, documents: Artifact, out: Output) -> None: ...

Called in a flow, a stage computes its key (identity.py) and asks the store. On a miss it makes the artifact
(making.py). Either way the call is a Prefect task (as_task.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from storage.artifact import Artifact
from storage.errors import ConfigError, EmptyOutput, StoreError, TokenizerMismatch
from tasks.stage.as_task import task_of, task_of_several
from tasks.stage.config import StageConfig
from tasks.stage.display.pages import call_within, in_task
from tasks.stage.identity import Declaration
from tasks.stage.making import MakingStage
from tasks.stage.protocol import AdoptionCheck, Input
from tasks.stage.session import current

Config = TypeVar("Config")

STAGES: dict[str, Stage] = {}


class Reached(Exception):
    """The last stage of a run has its artifact. Control flow, not an error."""

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact)
        self.artifact = artifact


class Stage(MakingStage):
    """A declared function that the pipeline calls."""

    task = functools.cached_property(task_of)
    task_of_several = functools.cached_property(task_of_several)

    def __call__(self, config: StageConfig | None, *inputs: Input) -> Artifact:
        """Run as a task of the current flow, or as the session's `call` says (a plan asks without running).

        A null section of the profile leaves its stage out: the call returns its first input.
        """
        if config is None:
            first = inputs[0]
            assert isinstance(first, Artifact), f"{self.name} can't be left out"
            return first.whole()
        session = current()
        call = session.call if session else None
        # A task that sets its own final state returns the state, not its data, so always ask for the state
        artifact: Artifact = (
            call(self, config, inputs) if call else self.task(config, *inputs, return_state=True).result()
        )
        if session and session.until == self.name:
            raise Reached(artifact)
        return artifact

    def before(self, later: Mapping[str, Config], check: Callable[[Mapping[str, Config]], None]) -> None:
        """In this session, call `check` before this stage's artifact is made. It gets the `later` stages that the run
        reaches, as configs by name in their order, and raises a GristmillError for what they would refuse. It isn't
        called if the artifact is stored or the run ends with this stage."""
        session = current()
        if session and session.until != self.name:
            names = list(later)
            last = names.index(session.until) + 1 if session.until in names else None
            reached = {name: later[name] for name in names[:last]}
            session.checks[self.name] = lambda: check(reached)

    def adoption_check(self) -> AdoptionCheck:
        """This stage's check of a folder that was made elsewhere. Raises ConfigError if it has none."""
        if self.declared.adopted is None:
            able = ", ".join(sorted(name for name, stage in STAGES.items() if stage.declared.adopted is not None))
            raise ConfigError(f"{self.name} can't check a folder that was made elsewhere.", f"Stages that can: {able}.")
        return self.declared.adopted

    def check_adopted(self, config: StageConfig, folder: Artifact, inputs: Sequence[Input]) -> None:
        """Check that a folder made elsewhere can be this stage's artifact of this config and these inputs.

        Raises ConfigError for a stage that can't check one and for files that don't match the config, StoreError for
        files that the stage doesn't write.
        """
        check = self.adoption_check()
        try:
            check(config, folder, self.named(inputs))
        except (StoreError, TokenizerMismatch, EmptyOutput) as error:
            raise StoreError(
                f"{folder.path} can't be the artifact of {self.name}: {error.message}",
                f"Give a folder with files as {self.name} writes them for this profile.",
            ) from error

    def obtained(self, config: StageConfig, inputs: Sequence[Input]) -> Artifact:
        """The artifact of this config and these inputs, for another stage that is working. Runs as its own task if that
        stage does. Needs a session."""
        if not in_task():
            return self.materialize(config, inputs)[0]
        artifact: Artifact = call_within(self.task, config, *inputs)
        return artifact

    def obtained_all(self, calls: Sequence[tuple[StageConfig, Sequence[Input]]]) -> list[Artifact]:
        """As `obtained` for each call. Those that are missing are made together."""
        if not in_task() or not calls:
            return [artifact for artifact, _ in self.materialize_all(calls)]
        artifacts: list[Artifact] = call_within(self.task_of_several, calls)
        return artifacts


class stage(Declaration):
    """Make a stage of a function `(config, inputs…, out) -> None`."""

    def __call__(self, function: Callable[..., Any]) -> Stage:
        made = Stage(function, self)
        STAGES[made.name] = made
        return made
