"""`python -m tests.tasks.pretrain.checkpoints.kill_in_save FOLDER SECONDS`: a training that dies while it saves.

Its first checkpoint is whole; SECONDS after the second was begun behind it sends itself SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from tasks.pretrain.checkpoints.manager import Checkpoints
from tasks.pretrain.engines import open_engine
from tests.tasks.pretrain.tiny_training import alone, make_spec


def main(folder: Path, seconds: float) -> None:
    """Save, save again, die."""
    model = {"family": "llama", "depth": 4, "width": 256, "heads": 4, "context": 32}  # some tens of MB to write
    spec = make_spec(folder, model=model)
    with alone() as world:
        engine = open_engine(spec, world)
        ids = torch.arange(spec.config.global_batch * 33).view(-1, 33) % spec.shape.vocab_size
        engine.step([(ids[:, :-1], ids[:, 1:], None)], 1e-3)
        checkpoints = Checkpoints(spec.checkpoints, "mine", world=world, asynchronous=True)
        checkpoints.save(engine, 1)
        checkpoints.finish()
        checkpoints.save(engine, 2)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
