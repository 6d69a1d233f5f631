"""A further host of a rendezvous takes part in the training of the host where the stage runs, and joins it again.

The stage writes its spec anew whenever it starts its child; a host whose processes ended waits a while for that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tasks.children.alive import FILE, VARIABLE
from tasks.children.environment import training_environment
from tasks.children.launchers import training_command
from tasks.children.parent import tied_to
from tasks.stage.runtime import Runtime

REJOIN_SECONDS = 300.0  # a stage that was ended by an error does not begin again


def main() -> None:
    """`python -m tasks.children.join MODULE SPEC`: take part in another host's training until it ends."""
    module, spec = sys.argv[1], Path(sys.argv[2])
    while True:
        begun = spec.stat().st_mtime_ns
        runtime = Runtime.model_validate(json.loads(spec.read_text())["runtime"])
        command = tied_to(os.getpid(), training_command(module, spec, runtime.training))
        environment = training_environment(runtime.compute, runtime.training.processes)
        code = subprocess.call(command, env=environment | {VARIABLE: str(spec.with_name(FILE))})
        if code == 0 or not _begins_again(spec, begun):
            sys.exit(code)


def _begins_again(spec: Path, begun: int) -> bool:
    """Whether the stage has written its spec anew since `begun` (nanoseconds), or does so in a while."""
    deadline = time.monotonic() + REJOIN_SECONDS
    while spec.exists() and time.monotonic() < deadline:
        if spec.stat().st_mtime_ns != begun:
            return True
        time.sleep(1.0)
    return False


if __name__ == "__main__":
    main()
