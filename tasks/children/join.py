"""Lets a further host take part in a store's trainings that meet at a rendezvous, one after another: `gristmill join`.

A stage that trains on several hosts keeps a file that shows that it lives (heartbeat.py), with its spec beside it, and
rewrites the spec whenever it starts its child. So a host whose processes ended joins again when the stage goes on.
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
    """Run `python -m tasks.children.join FOLDER`: `gristmill join` on the folder that stages work in."""
    join_all(Path(sys.argv[1]), lambda sentence: print(sentence, flush=True))


def join_all(work: Path, tell: Callable[[str], None]) -> None:
    """Take part in every training of the stages that work in folders of `work`, until interrupted."""
    work = work.resolve()
    for module, spec in _trainings(work):
        runtime = Runtime.model_validate(json.loads(spec.read_text())["runtime"])
        if runtime.training.rendezvous is None:
            continue  # srun or DeepSpeed starts its processes everywhere
        tell(f"joining {spec.relative_to(work).parts[0]}")
        command = tied_to(os.getpid(), training_command(module, spec, runtime.training))
        environment = training_environment(runtime.compute, runtime.training.processes, module)
        code = subprocess.call(command, env=environment | {VARIABLE: str(spec.with_name(FILE))})
        tell("it ended" if code == 0 else f"it ended with exit code {code}: waiting for the stage to restart")


def _trainings(work: Path) -> Iterator[tuple[str, Path]]:
    """The module and the spec of each training, once for each start. A file that never changes is left over from a
    stage that was killed."""
    last: dict[Path, str] = {}
    begun: dict[Path, int] = {}
    while True:
        # Resolved, as the meeting is named by the path: a link to a folder is not a second training
        for file in sorted({path.resolve() for path in work.glob(f"*/scratch/{FILE}")}):
            spec = file.with_name("spec.json")
            try:
                now, written = file.read_text(), spec.stat().st_mtime_ns
            except OSError:
                continue  # the stage has just ended
            words = now.split()  # see `shown_alive`. Fewer while it is written
            lives = len(words) == 3 and last.setdefault(file, now) != now
            if lives and begun.get(file) != written:
                last[file], begun[file] = now, written
                yield words[1], spec
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
