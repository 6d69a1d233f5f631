"""The command that starts a training's processes: one, several on this host, or as many on each of many hosts.

    processes  hosts                                   command
    1          1                                       python -m MODULE SPEC
    more       1                                       ours (ranks.py), or DeepSpeed's
    any        training.hostfile                       DeepSpeed's runner, over ssh
    any        training.rendezvous and training.hosts  torchrun; `gristmill join` on the other hosts
    any        the nodes of a Slurm allocation         srun, a torchrun on each node

Hosts must see the store, its scratch folders and this program under the same paths. A process that dies ends the whole
training. The stage then restarts it from the last checkpoint, and hosts that joined it join again (join.py).
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import ipaddress
import json
import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from storage.errors import ConfigError
from tasks.children.hosts import check_hosts, slurm_nodes
from tasks.stage.runtime import TrainingRuntime

MEETING_SECONDS = 600  # that hosts wait for the rest at the rendezvous
LEAVING_SECONDS = 15.0  # that an ended training may still listen
FIRST_PORT, PORTS = 20_000, 10_000  # of a Slurm job's rendezvous, below the ephemeral ports of systems


def training_command(
    module: str,
    spec: Path,
    training: TrainingRuntime,
    environment: Mapping[str, str] | None = None,
    *,
    leads: bool = False,
) -> list[str]:
    """The command for `python -m module spec` in as many processes and on as many hosts as the runtime, or Slurm, says.
    `leads` says that this is the stage's own host, where the others may meet.

    Raises ConfigError for contradictory settings.
    """
    environment = os.environ if environment is None else environment
    check_hosts(training)
    started = ["--module", module, str(spec)]
    nodes = slurm_nodes(environment)
    if training.hostfile is not None:
        runner = [sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", training.hostfile]
        return [*runner, "--num_gpus", str(training.processes), "--no_local_rank", *started]
    if training.rendezvous is not None:
        here = leads and _is_unknown_here(training.rendezvous)
        return [*_torchrun(training, training.hosts, training.rendezvous, _meeting(spec), here=here), *started]
    if nodes > 1:
        meeting = f"gristmill-{environment['SLURM_JOB_ID']}"
        run = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
        agent = _torchrun(training, nodes, _slurm_address(environment), meeting)
        return [*run, *_slurm_share(environment), *agent, *started]
    if training.processes == 1:
        return [sys.executable, "-m", module, str(spec)]
    if training.launcher == "deepspeed":
        # DeepSpeed's runner would only start this launcher: one more parent that could die without its children
        hosts = base64.urlsafe_b64encode(json.dumps({"localhost": list(range(training.processes))}).encode()).decode()
        launcher = [sys.executable, "-m", "deepspeed.launcher.launch", f"--world_info={hosts}"]
        return [*launcher, "--master_addr=127.0.0.1", f"--master_port={free_port()}", "--no_local_rank", *started]
    return [sys.executable, "-m", "tasks.children.ranks", str(training.processes), str(free_port()), module, str(spec)]


def _torchrun(training: TrainingRuntime, hosts: int, address: str, meeting: str, *, here: bool = False) -> list[str]:
    """The command of an agent on each host. Agents never restart processes: the stage does, as it knows the cause.
    `here` says that all meet at this host's address, if torchrun would not find out."""
    where = ["--rdzv-backend=c10d", f"--rdzv-endpoint={address}", f"--rdzv-id={meeting}", "--max-restarts=0"]
    where.append(f"--rdzv-conf=join_timeout={MEETING_SECONDS}{',is_host=1' if here else ''}")
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={hosts}",
        f"--nproc-per-node={training.processes}",
        *where,
    ]


def _is_unknown_here(address: str) -> bool:
    """Whether a `host:port` is on this host without torchrun knowing: it only resolves the host's name."""
    host, name = address.rpartition(":")[0], socket.gethostname()
    places = _addresses(host)
    unknown = host != name and not places & _addresses(name)
    return unknown and any(not ipaddress.ip_address(place).is_loopback and _is_own(place) for place in places)


def check_meeting_place(address: str) -> None:
    """Raises ConfigError if another program of this host listens on the `host:port` at which hosts are to meet, as they
    would wait there in vain. Waits LEAVING_SECONDS for the end of an earlier training's listener."""
    host, _, port = address.rpartition(":")
    own = [place for place in sorted(_addresses(host)) if _is_own(place)]
    deadline = time.monotonic() + LEAVING_SECONDS
    while not all(_is_free(place, int(port)) for place in own):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"runtime.training.rendezvous is {address}, where another program of this host listens.",
                "Choose a port that is free on that host, the same on all hosts.",
            )
        time.sleep(0.5)


def _is_free(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port of a program that just ended is free
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def _addresses(name: str) -> set[str]:
    with contextlib.suppress(OSError):
        return {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    return set()


def _is_own(address: str) -> bool:
    """Whether an address is this host's: only then can it be bound to."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        return True
    return False


def _meeting(spec: Path) -> str:
    """The name of a meeting: the same on every host, a new one for every stage and each of its restarts."""
    begun = spec.stat().st_mtime_ns if spec.exists() else 0
    return f"gristmill-{hashlib.sha256(f'{spec} {begun}'.encode()).hexdigest()[:12]}"


def _slurm_share(environment: Mapping[str, str]) -> list[str]:
    """Options that give an agent the job's whole share of each node, if srun would give it less.

    Since Slurm 22.05 srun doesn't inherit `--cpus-per-task`, so a task bound to cores (`--exact`, SLURM_CPU_BIND) has
    one. A job with `--gpus-per-task=1` shows the one task of a node one GPU, and srun refuses more for a task.
    """
    share = []
    if cpus := _slurm_cpus(environment):
        share.append(f"--cpus-per-task={cpus}")
    if "SLURM_GPUS_PER_TASK" in environment and "SLURM_GPUS_ON_NODE" in environment:
        share.append(f"--gpus-per-node={environment['SLURM_GPUS_ON_NODE']}")
    return share


def _slurm_cpus(environment: Mapping[str, str]) -> int | None:
    """The job's CPUs on the node with the fewest: those that its tasks there request, or else all. Slurm lists nodes
    as in `8(x2),4`."""
    per_task = environment.get("SLURM_CPUS_PER_TASK")
    listed = environment.get("SLURM_TASKS_PER_NODE" if per_task else "SLURM_JOB_CPUS_PER_NODE", "")
    numbers = [int(number) for number in re.findall(r"(?:^|,)(\d+)", listed)]
    if not numbers:
        numbers = [1] if per_task else [int(environment.get("SLURM_CPUS_ON_NODE", "0"))]
    return min(numbers) * int(per_task or 1) or None


def _slurm_address(environment: Mapping[str, str]) -> str:
    """The allocation's first node, at a port of this job's own. `node[07-09,12],gpu3` begins with `node07`."""
    first = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\])?", environment["SLURM_JOB_NODELIST"])
    if first is None:
        raise ConfigError(
            f"SLURM_JOB_NODELIST is {environment['SLURM_JOB_NODELIST']!r}, which does not name a node.",
            "Start the run inside a Slurm allocation, or set runtime.training.rendezvous and training.hosts.",
        )
    port = FIRST_PORT + int(environment["SLURM_JOB_ID"]) % PORTS
    return f"{first[1]}{first[2] or ''}:{port}"


def free_port() -> int:
    """A free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
