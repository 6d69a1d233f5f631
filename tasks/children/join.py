"""A further host takes part in the trainings of a store that meet at a rendezvous, one after another: `gristmill join`.

A stage that trains with others shows that it lives, and beside it lies its spec (heartbeat.py); it writes the spec anew
whenever it starts its child. So a host whose processes ended takes part again where the stage goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tasks.children.die_with_parent import tied_to
from tasks.children.environment import training_environment
from tasks.children.heartbeat import FILE, VARIABLE
from tasks.children.launchers import training_command
from tasks.stage.runtime import Runtime

LOOK_SECONDS = 1.0


def main() -> None:
    """`python -m tasks.children.join FOLDER`: what `gristmill join` does, on the folder that stages work in."""
    join_all(Path(sys.argv[1]), lambda sentence: print(sentence, flush=True))


def join_all(work: Path, tell: Callable[[str], None]) -> None:
    """Take part in every training of the stages that work in folders of `work`, until interrupted."""
    work = work.resolve()
    for module, spec in _trainings(work):
        runtime = Runtime.model_validate(json.loads(spec.read_text())["runtime"])
        if runtime.training.rendezvous is None:
            continue  # srun or DeepSpeed starts its processes everywhere
        tell(f"taking part in {spec.relative_to(work).parts[0]}")
        command = tied_to(os.getpid(), training_command(module, spec, runtime.training))
        environment = training_environment(runtime.compute, runtime.training.processes)
        code = subprocess.call(command, env=environment | {VARIABLE: str(spec.with_name(FILE))})
        tell("it ended" if code == 0 else f"it ended with exit code {code}; waiting for the stage to begin again")


def _trainings(work: Path) -> Iterator[tuple[str, Path]]:
    """The module and the spec of each training, once each time that it begins. A file that stays as it is was left by a
    stage that was killed."""
    said: dict[Path, str] = {}
    begun: dict[Path, int] = {}
    while True:
        # By their own paths, of which the meeting has its name: a link to a folder is no second training
        for file in sorted({path.resolve() for path in work.glob(f"*/scratch/{FILE}")}):
            spec = file.with_name("spec.json")
            try:
                now, written = file.read_text(), spec.stat().st_mtime_ns
            except OSError:
                continue  # the stage has just ended
            words = now.split()  # see `shown_alive`; fewer while it is written
            lives = len(words) == 3 and said.setdefault(file, now) != now
            if lives and begun.get(file) != written:
                said[file], begun[file] = now, written
                yield words[1], spec
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
