"""`python -m tests.pipeline.kill_midway STORE STAGE|none OVERRIDE…`: a run without Prefect that kills itself.

It sends itself SIGKILL as soon as STAGE has told of progress in its middle: the child of the test that kills every
stage once. With `none` it runs to its end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from flows.pipeline import stages
from flows.session import session_of
from profiles.load import load
from storage.artifact import Artifact
from tasks.config import StageConfig
from tasks.progress import Observer, Progress
from tasks.session import open_session
from tasks.stage import Stage


class KillAt(Observer):
    """Ends this process without warning once the stage is under way."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def progressed(self, progress: Progress) -> None:
        """A training run dies in the middle; a stage of few shards after the first."""
        middle = 0.4 * progress.total if progress.unit == "steps" else 0
        if progress.stage == self.stage and progress.note != "starting" and progress.done >= middle:
            os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, stage: str, *overrides: str) -> None:
    """Run the pipeline of `smoke`."""
    profile = load("smoke", [f"runtime.store={url}", *overrides])

    def call(made: Stage, config: StageConfig, inputs: Sequence[Artifact]) -> Artifact:
        artifact, _ = made.materialize(config, inputs)
        return artifact

    with open_session(replace(session_of(profile), observer=KillAt(stage), call=call)):
        stages(profile)


if __name__ == "__main__":
    main(*sys.argv[1:])
