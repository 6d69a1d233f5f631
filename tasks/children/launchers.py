"""The command that starts a training's processes: one, several on this host, or as many on each of many hosts.

    processes  hosts                                   command
    1          1                                       python -m MODULE SPEC
    more       1                                       ours (ranks.py), or DeepSpeed's
    any        training.hostfile                       DeepSpeed's runner, over ssh
    any        training.rendezvous and training.hosts  torchrun; `gristmill join` on the other hosts
    any        the nodes of a Slurm allocation         srun, a torchrun on each node

Hosts must see the store, its scratch folders and this program under the same paths. A process that dies ends the whole
training; what begins it again is the stage, from the last checkpoint. Hosts that joined it join again then (join.py).
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

MEETING_SECONDS = 600  # for which hosts that have come wait for the others
LEAVING_SECONDS = 15.0  # for which a training that has ended may still listen
FIRST_PORT, PORTS = 20_000, 10_000  # of a Slurm job's rendezvous, below those that systems give out by themselves


def training_command(
    module: str,
    spec: Path,
    training: TrainingRuntime,
    environment: Mapping[str, str] | None = None,
    *,
    leads: bool = False,
) -> list[str]:
    """`python -m module spec` in as many processes and on as many hosts as the runtime, or Slurm, says. The host of the
    stage `leads` others to a rendezvous.

    Raises ConfigError for settings that contradict each other.
    """
    environment = os.environ if environment is None else environment
    check_hosts(training)
    started = ["--module", module, str(spec)]
    nodes = slurm_nodes(environment)
    if training.hostfile is not None:
        runner = [sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", training.hostfile]
        return [*runner, "--num_gpus", str(training.processes), "--no_local_rank", *started]
    if training.rendezvous is not None:
        told = leads and _is_unknown_here(training.rendezvous)
        return [*_torchrun(training, training.hosts, training.rendezvous, _meeting(spec), here=told), *started]
    if nodes > 1:
        meeting = f"gristmill-{environment['SLURM_JOB_ID']}"
        run = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
        agent = _torchrun(training, nodes, _slurm_address(environment), meeting)
        return [*run, *_slurm_share(environment), *agent, *started]
    if training.processes == 1:
        return [sys.executable, "-m", module, str(spec)]
    if training.launcher == "deepspeed":
        # The launcher and not the runner, which starts it: one parent less that could die without its children
        hosts = base64.urlsafe_b64encode(json.dumps({"localhost": list(range(training.processes))}).encode()).decode()
        launcher = [sys.executable, "-m", "deepspeed.launcher.launch", f"--world_info={hosts}"]
        return [*launcher, "--master_addr=127.0.0.1", f"--master_port={free_port()}", "--no_local_rank", *started]
    return [sys.executable, "-m", "tasks.children.ranks", str(training.processes), str(free_port()), module, str(spec)]


def _torchrun(training: TrainingRuntime, hosts: int, address: str, meeting: str, *, here: bool = False) -> list[str]:
    """An agent on each host. None is restarted by itself: the stage does that, knowing why. `here` says that
    it is this one at whose address all meet, where torchrun would not know."""
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
    """Whether a `host:port` is on this host, and torchrun would not know: it goes by what the host's name leads to."""
    host, name = address.rpartition(":")[0], socket.gethostname()
    places = _addresses(host)
    unknown = host != name and not places & _addresses(name)
    return unknown and any(not ipaddress.ip_address(place).is_loopback and _is_own(place) for place in places)


def check_meeting_place(address: str) -> None:
    """Raises ConfigError where another program of this host listens on the `host:port` at which hosts are to meet: they
    would wait for one another there. What a training before has left there is waited for."""
    host, _, port = address.rpartition(":")
    own = [place for place in sorted(_addresses(host)) if _is_own(place)]
    deadline = time.monotonic() + LEAVING_SECONDS
    while not all(_is_free(place, int(port)) for place in own):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"runtime.training.rendezvous is {address}, where another program of this host listens.",
                "Give a port that is free on that host, the same on all hosts.",
            )
        time.sleep(0.5)


def _is_free(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # that of a program that has just ended is free
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def _addresses(name: str) -> set[str]:
    with contextlib.suppress(OSError):
        return {str(found[4][0]) for found in socket.getaddrinfo(name, None)}
    return set()


def _is_own(address: str) -> bool:
    """That of another host can't be bound to."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        return True
    return False


def _meeting(spec: Path) -> str:
    """The same on every host, and another for every stage and each time that it begins again."""
    begun = spec.stat().st_mtime_ns if spec.exists() else 0
    return f"gristmill-{hashlib.sha256(f'{spec} {begun}'.encode()).hexdigest()[:12]}"


def _slurm_share(environment: Mapping[str, str]) -> list[str]:
    """What an agent is to get of each node, where srun would give it less than the job has.

    Since Slurm 22.05 srun doesn't inherit `--cpus-per-task`; a task that is bound to cores (`--exact`, SLURM_CPU_BIND)
    then has one. A job with `--gpus-per-task=1` shows the one task of a node one GPU, and srun refuses more for a task.
    """
    share = []
    if cpus := _slurm_cpus(environment):
        share.append(f"--cpus-per-task={cpus}")
    if "SLURM_GPUS_PER_TASK" in environment and "SLURM_GPUS_ON_NODE" in environment:
        share.append(f"--gpus-per-node={environment['SLURM_GPUS_ON_NODE']}")
    return share


def _slurm_cpus(environment: Mapping[str, str]) -> int | None:
    """CPUs of the job on each of its nodes: those that its tasks there ask for, or else all, of the node with fewest.
    Lists of nodes are such as `8(x2),4`."""
    asked = environment.get("SLURM_CPUS_PER_TASK")
    listed = environment.get("SLURM_TASKS_PER_NODE" if asked else "SLURM_JOB_CPUS_PER_NODE", "")
    numbers = [int(number) for number in re.findall(r"(?:^|,)(\d+)", listed)]
    if not numbers:
        numbers = [1] if asked else [int(environment.get("SLURM_CPUS_ON_NODE", "0"))]
    return min(numbers) * int(asked or 1) or None


def _slurm_address(environment: Mapping[str, str]) -> str:
    """The allocation's first node, at a port of this job's own. `node[07-09,12],gpu3` begins with `node07`."""
    first = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\])?", environment["SLURM_JOB_NODELIST"])
    if first is None:
        raise ConfigError(
            f"SLURM_JOB_NODELIST is {environment['SLURM_JOB_NODELIST']!r}, which names no node.",
            "Start the run inside a Slurm allocation, or set runtime.training.rendezvous and training.hosts.",
        )
    port = FIRST_PORT + int(environment["SLURM_JOB_ID"]) % PORTS
    return f"{first[1]}{first[2] or ''}:{port}"


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
