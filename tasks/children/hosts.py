"""Which hosts train: those of a DeepSpeed hostfile, those that meet at a rendezvous, or the nodes of a Slurm job.

DeepSpeed's runner trains on one host without a word when its hostfile is missing, so the file is read here first, by
DeepSpeed's own rules (deepspeed/launcher/runner.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from storage.errors import ConfigError
from tasks.stage.runtime import TrainingRuntime

SLOTS = re.compile(r"(\S+)\s+slots=([0-9]{1,9})(?!\d)")
FORM = "DeepSpeed wants a line `name slots=8` for each host, and lines that begin with # for comments."


def check_hosts(training: TrainingRuntime) -> None:
    """Raises ConfigError for settings of hosts and launcher that contradict each other, and for a hostfile that is here
    but is none, or has fewer slots than `processes`. One that is missing may lie on the machine that will train."""
    if (training.rendezvous is None) != (training.hosts == 1):
        raise ConfigError(
            f"runtime.training: hosts is {training.hosts}, rendezvous {training.rendezvous}: one needs the other.",
            "Give the number of hosts and the host:port at which they meet, or neither.",
        )
    if training.rendezvous is not None and training.hostfile is not None:
        raise ConfigError(
            "runtime.training.hostfile and runtime.training.rendezvous both say which hosts train.",
            "Leave one of them out.",
        )
    wrong = "torchrun" if training.hostfile is not None else "deepspeed" if training.rendezvous is not None else None
    if wrong is not None and training.launcher == wrong:
        raise ConfigError(
            f"runtime.training.launcher is {wrong}, which can't start what "
            f"runtime.training.{'hostfile' if training.hostfile is not None else 'rendezvous'} asks for.",
            "Set launcher to auto: a hostfile is DeepSpeed's, a rendezvous torchrun's.",
        )
    if training.hostfile is not None and Path(training.hostfile).exists():
        for host, slots in read_hostfile(training.hostfile).items():
            if slots < training.processes:
                raise ConfigError(
                    f"runtime.training.processes is {training.processes}, but {training.hostfile} has {slots} slots "
                    f"for {host}.",
                    f"Set runtime.training.processes to at most {slots}, or give {host} more slots.",
                )


def check_hosts_here(training: TrainingRuntime) -> None:
    """Raises ConfigError for a hostfile that is not on this machine."""
    if training.hostfile is not None and not Path(training.hostfile).exists():
        raise ConfigError(
            f"runtime.training.hostfile is {training.hostfile}, which does not exist in {Path.cwd()}."
            if not Path(training.hostfile).is_absolute()
            else f"runtime.training.hostfile is {training.hostfile}, which does not exist.",
            f"Write it, or set runtime.training.hostfile to null to train on this host alone. {FORM}",
        )


def hosts_of(training: TrainingRuntime, environment: Mapping[str, str] | None = None) -> int | None:
    """How many hosts train; None where only a hostfile knows that is not on this machine.

    Raises ConfigError as `read_hostfile`.
    """
    if training.hostfile is not None:
        return len(read_hostfile(training.hostfile)) if Path(training.hostfile).exists() else None
    return training.hosts if training.rendezvous is not None else slurm_nodes(environment)


def on_other_hosts(training: TrainingRuntime, environment: Mapping[str, str] | None = None) -> bool:
    """Whether other hosts than this one may train."""
    return training.hostfile is not None or training.rendezvous is not None or slurm_nodes(environment) > 1


def slurm_nodes(environment: Mapping[str, str] | None = None) -> int:
    """Nodes of the Slurm allocation that this process runs in; 1 outside of any."""
    environment = os.environ if environment is None else environment
    return int(environment.get("SLURM_NNODES", "1")) if "SLURM_JOB_ID" in environment else 1


def read_hostfile(path: str) -> dict[str, int]:
    """The slots of each host. Raises ConfigError for what DeepSpeed could not read."""
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"runtime.training.hostfile is {path}, which can't be read: {why}.", FORM) from error
    slots: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        found = SLOTS.match(line)
        if found is None or found[1] in slots:
            what = "names no host with its slots" if found is None else f"names {found[1]} a second time"
            raise ConfigError(f"runtime.training.hostfile is {path}, which is no hostfile: line {number} {what}.", FORM)
        slots[found[1]] = int(found[2])
    if not slots:
        raise ConfigError(f"runtime.training.hostfile is {path}, which names no host.", FORM)
    return slots
