"""`python -m tests.tasks.kill_in_save FOLDER SECONDS`: a training that kills itself while it saves.

Its first checkpoint is whole; SECONDS after the second was begun behind it sends itself SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from tasks.pretrain.checkpoints import Checkpoints
from tasks.pretrain.engines import open_engine
from tests.tasks.training import alone, make_spec


def main(folder: Path, seconds: float) -> None:
    """Save, save again, die."""
    model = {"family": "llama", "depth": 4, "width": 256, "heads": 4, "context": 32}  # some tens of MB to write
    spec = make_spec(folder, model=model)
    with alone() as world:
        engine = open_engine(spec, world)
        checkpoints = Checkpoints(spec.checkpoints, "mine", world=world, behind=True)
        checkpoints.save(engine, 1)
        checkpoints.finish()
        checkpoints.save(engine, 2)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
