"""The hosts that train: those of a DeepSpeed hostfile, those that meet at a rendezvous, or the nodes of a Slurm job.

DeepSpeed's runner silently trains on one host if its hostfile is missing. So the file is read here first, by the same
rules (deepspeed/launcher/runner.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from storage.errors import ConfigError
from tasks.stage.runtime import TrainingRuntime

SLOTS = re.compile(r"(\S+)\s+slots=([0-9]{1,9})(?!\d)")
FORM = "Write a line `name slots=8` for each host. Lines that begin with # are comments."


def check_hosts(training: TrainingRuntime) -> None:
    """Raises ConfigError for contradictory settings of hosts and launcher, and for a hostfile that can't be parsed or
    has fewer slots than `processes`. A missing hostfile may lie on the machine that will train."""
    if (training.rendezvous is None) != (training.hosts == 1):
        raise ConfigError(
            f"runtime.training.hosts is {training.hosts} and rendezvous {training.rendezvous}: each needs the other.",
            "Set the number of hosts and the host:port at which they meet, or neither.",
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
            f"Create it, or set runtime.training.hostfile to null to train only on this host. {FORM}",
        )


def hosts_of(training: TrainingRuntime, environment: Mapping[str, str] | None = None) -> int | None:
    """The number of hosts that train, None if only a hostfile on another machine says.

    Raises ConfigError as `read_hostfile` does.
    """
    if training.hostfile is not None:
        return len(read_hostfile(training.hostfile)) if Path(training.hostfile).exists() else None
    return training.hosts if training.rendezvous is not None else slurm_nodes(environment)


def on_other_hosts(training: TrainingRuntime, environment: Mapping[str, str] | None = None) -> bool:
    """Whether other hosts than this one may train."""
    return training.hostfile is not None or training.rendezvous is not None or slurm_nodes(environment) > 1


def slurm_nodes(environment: Mapping[str, str] | None = None) -> int:
    """The nodes of the Slurm allocation that this process runs in, 1 outside of any."""
    environment = os.environ if environment is None else environment
    return int(environment.get("SLURM_NNODES", "1")) if "SLURM_JOB_ID" in environment else 1


def read_hostfile(path: str) -> dict[str, int]:
    """The slots of each host. Raises ConfigError for a file that DeepSpeed could not read."""
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"runtime.training.hostfile is {path}, which can't be read: {why}.", FORM) from error
    slots: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        match = SLOTS.match(line)
        if match is None or match[1] in slots:
            what = "is not a host with its slots" if match is None else f"repeats {match[1]}"
            raise ConfigError(
                f"runtime.training.hostfile is {path}, which can't be parsed: line {number} {what}.", FORM
            )
        slots[match[1]] = int(match[2])
    if not slots:
        raise ConfigError(f"runtime.training.hostfile is {path}, which lists no hosts.", FORM)
    return slots
