"""`python -m tests.pipeline.forked RUNS`: runs of `smoke` without Prefect, one after the other, each in a fork.

RUNS is JSON: [{"store", "overrides", "to", "kill"}], the last three optional. Importing the pipeline costs more than
most of its stages here, so it is done once, and what is forked has nothing but the imports of the process before it: no
thread, no lock, no store. A run with `kill` sends itself SIGKILL as soon as that stage has told of progress in its
middle. The last line printed is the list of exit codes.

The pipeline is imported in `main`, since what a stage spawns imports this file too.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tasks.stage.display.progress import Observer, Progress

if TYPE_CHECKING:
    from storage.artifact import Artifact
    from tasks.stage.config import StageConfig
    from tasks.stage.protocol import AnyStage, Input


class KillAt(Observer):
    """Ends this process without warning once the stage is under way."""

    def __init__(self, stage: str | None) -> None:
        self.stage = stage

    def progressed(self, progress: Progress) -> None:
        """A training run dies in the middle; a stage of few shards after the first."""
        middle = 0.4 * progress.total if progress.unit == "steps" else 0
        if progress.stage == self.stage and progress.note != "starting" and progress.done >= middle:
            os.kill(os.getpid(), signal.SIGKILL)


def run(store: str, overrides: Sequence[str] = (), to: str | None = None, kill: str | None = None) -> None:
    """Run the pipeline of `smoke`, as far as stage `to`."""
    from flows.pipeline import stages
    from flows.session import session_of
    from profiles.load import load
    from tasks.stage.session import open_session

    profile = load("smoke", [f"runtime.store={store}", *overrides])

    def call(made: AnyStage, config: StageConfig, inputs: Sequence[Input]) -> Artifact:
        artifact, _ = made.materialize(config, inputs)
        return artifact

    with open_session(replace(session_of(profile, to), observer=KillAt(kill), call=call)):
        stages(profile)


def main(runs: list[dict[str, Any]]) -> None:
    """Run them all, whatever becomes of each."""
    import flows.pipeline  # noqa: F401

    assert threading.active_count() == 1, "a fork would be without the other threads"
    codes = []
    for chosen in runs:
        process = multiprocessing.get_context("fork").Process(target=run, kwargs=chosen)
        process.start()
        process.join()
        codes.append(process.exitcode)
    print(json.dumps(codes))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
