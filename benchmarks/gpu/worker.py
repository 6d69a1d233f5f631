"""The process that measures, one task after another: `python -m benchmarks.gpu.worker`. Imports and the context of the
device are paid for once.

A task is a line of JSON on standard input: a module, whose `measure` is called, and its arguments. The answer is a
line on standard output, as soon as it is known. Before each task a line says that the process is ready, which is to say
as it was at its start (state.py); where it can't be that again, it ends. It also ends where a task fails, whatever the
error: that may hold on to memory, or have left the device unusable.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from benchmarks.gpu.state import State
from benchmarks.measure import end_as_interrupted


def main() -> None:
    """Answer until nobody asks any more."""
    end_as_interrupted()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print, and trainings tell their stage

    def tell(**fields: object) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    begun = State.now()
    tell(ready=True)
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        tell(**importlib.import_module(asked["module"]).measure(**asked["given"]))
        if not begun.restore():
            return
        tell(ready=True)


if __name__ == "__main__":
    main()
