"""A run on the hosts of a Ray cluster, by Ray Train: `gristmill hosts --for ray` prints how to submit it.

    python -m flows.commands.hosts.on_ray HOSTS GPUS STORE gristmill run …

Each worker of Ray Train is a host, with all the GPUs that it trains with. The first one runs the command, which meets
the others at its address. They join, like `gristmill join`, until it ends. When a worker or its host dies, Ray restarts
all of them, elsewhere if necessary, and the run goes on from its last checkpoint.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from flows.commands.hosts.scripts import PORT
from tasks.children.die_with_parent import tied_to

RESTARTS = 3
CLI = "flows.cli"


def main() -> None:
    """Run the command on HOSTS hosts, in the current folder, which all of them see."""
    hosts, gpus, store, _, *command = sys.argv[1:]
    train, trainers = import_module("ray.train"), import_module("ray.train.v2.api.data_parallel_trainer")
    trainer = trainers.DataParallelTrainer(
        partial(take_part, command, int(hosts), store, str(Path.cwd())),
        scaling_config=train.ScalingConfig(
            num_workers=int(hosts),
            use_gpu=int(gpus) > 0,
            resources_per_worker={"GPU": int(gpus)} if int(gpus) else None,
            placement_strategy="SPREAD",
        ),
        run_config=train.RunConfig(
            storage_path=str(Path.cwd() / "ray_train"), failure_config=train.FailureConfig(max_failures=RESTARTS)
        ),
    )
    trainer.fit()


def take_part(command: Sequence[str], hosts: int, store: str, folder: str) -> None:
    """The work of each worker: run the command on the first, join on the others."""
    train, collective, util = (import_module(name) for name in ("ray.train", "ray.train.collective", "ray.util"))
    first = train.get_context().get_world_rank() == 0
    meets = [f"runtime.training.rendezvous={util.get_node_ip_address()}:{PORT}", f"runtime.training.hosts={hosts}"]
    words = [*command, *(word for setting in meets for word in ("--set", setting))] if hosts > 1 else [*command]
    if not first:
        words = ["join", "--store", store]
    process = subprocess.Popen(tied_to(os.getpid(), [sys.executable, "-m", CLI, *words]), cwd=folder)
    if first and (code := process.wait()):
        raise RuntimeError(f"the run ended with exit code {code}: see the job's log")
    collective.barrier()  # joining hosts wait here until the run has ended
    process.kill()
    process.wait()


if __name__ == "__main__":
    main()
