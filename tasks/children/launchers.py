"""The command that starts a training's processes: one, several on this host, or as many on each of many hosts.

    processes  hosts                                   command
    1          1                                       python -m MODULE SPEC
    more       1                                       torchrun, or DeepSpeed's launcher
    any        runtime.hostfile                        DeepSpeed's runner, over ssh
    any        runtime.rendezvous and runtime.hosts    torchrun; on the others what `joining_command` says
    any        the nodes of a Slurm allocation         srun, a torchrun on each node

Hosts must see the store, its scratch folders and this program under the same paths. A process that dies ends the whole
training; what begins it again is the stage, from the last checkpoint. Hosts that joined a rendezvous join again then:
the stage writes the spec anew whenever it begins.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from storage.errors import ConfigError
from tasks.stage.config import Runtime

REJOIN_SECONDS = 300.0  # a stage that was ended by an error does not begin again
FIRST_PORT, PORTS = 20_000, 10_000  # of a Slurm job's rendezvous, below those that systems give out by themselves


def training_command(
    module: str, spec: Path, runtime: Runtime, environment: Mapping[str, str] | None = None
) -> list[str]:
    """`python -m module spec` in as many processes and on as many hosts as the runtime, or Slurm, says.

    Raises ConfigError for settings that contradict each other.
    """
    environment = os.environ if environment is None else environment
    _check(runtime)
    started = ["--module", module, str(spec)]
    nodes = int(environment.get("SLURM_NNODES", "1")) if "SLURM_JOB_ID" in environment else 1
    if runtime.hostfile is not None:
        runner = [sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", runtime.hostfile]
        return [*runner, "--num_gpus", str(runtime.processes), "--no_local_rank", *started]
    if runtime.rendezvous is not None:
        return [*_torchrun(runtime, runtime.hosts, runtime.rendezvous, _meeting(spec)), *started]
    if nodes > 1:
        meeting = f"gristmill-{environment['SLURM_JOB_ID']}"
        run = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
        return [*run, *_torchrun(runtime, nodes, _slurm_address(environment), meeting), *started]
    if runtime.processes == 1:
        return [sys.executable, "-m", module, str(spec)]
    if runtime.launcher == "deepspeed":
        # The launcher and not the runner, which starts it: one parent less that could die without its children
        hosts = base64.urlsafe_b64encode(json.dumps({"localhost": list(range(runtime.processes))}).encode()).decode()
        launcher = [sys.executable, "-m", "deepspeed.launcher.launch", f"--world_info={hosts}"]
        return [*launcher, "--master_addr=127.0.0.1", f"--master_port={_free_port()}", "--no_local_rank", *started]
    here = [f"--nproc-per-node={runtime.processes}", "--master-addr=127.0.0.1", f"--master-port={_free_port()}"]
    return [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", *here, *started]


def joining_command(module: str, spec: Path) -> str:
    """What to run on each further host of a rendezvous, in the same folder."""
    return f"python -m tasks.children.launchers {module} {spec}"


def _check(runtime: Runtime) -> None:
    if (runtime.rendezvous is None) != (runtime.hosts == 1):
        raise ConfigError(
            f"runtime.hosts is {runtime.hosts} and runtime.rendezvous is {runtime.rendezvous}: one needs the other.",
            "Give the number of hosts and the host:port at which they meet, or neither.",
        )
    if runtime.rendezvous is not None and runtime.hostfile is not None:
        raise ConfigError(
            "runtime.hostfile and runtime.rendezvous both say which hosts train.", "Leave one of them out."
        )
    wrong = "torchrun" if runtime.hostfile is not None else "deepspeed" if runtime.rendezvous is not None else None
    if wrong is not None and runtime.launcher == wrong:
        raise ConfigError(
            f"runtime.launcher is {wrong}, which can't start what "
            f"runtime.{'hostfile' if runtime.hostfile is not None else 'rendezvous'} asks for.",
            "Set launcher to auto: a hostfile is DeepSpeed's, a rendezvous torchrun's.",
        )


def _torchrun(runtime: Runtime, hosts: int, address: str, meeting: str) -> list[str]:
    """An agent on each host. None is restarted by itself: the stage does that, knowing why."""
    where = ["--rdzv-backend=c10d", f"--rdzv-endpoint={address}", f"--rdzv-id={meeting}", "--max-restarts=0"]
    return [
        sys.executable, "-m", "torch.distributed.run", f"--nnodes={hosts}", f"--nproc-per-node={runtime.processes}",
        *where,
    ]  # fmt: skip


def _meeting(spec: Path) -> str:
    """The same on every host, and another for every stage and each time that it begins again."""
    begun = spec.stat().st_mtime_ns if spec.exists() else 0
    return f"gristmill-{hashlib.sha256(f'{spec} {begun}'.encode()).hexdigest()[:12]}"


def _slurm_address(environment: Mapping[str, str]) -> str:
    """The allocation's first node, at a port of this job's own. `node[07-09,12],gpu3` begins with `node07`."""
    first = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\])?", environment["SLURM_JOB_NODELIST"])
    if first is None:
        raise ConfigError(
            f"SLURM_JOB_NODELIST is {environment['SLURM_JOB_NODELIST']!r}, which names no node.",
            "Start the run inside a Slurm allocation, or set runtime.rendezvous and runtime.hosts.",
        )
    port = FIRST_PORT + int(environment["SLURM_JOB_ID"]) % PORTS
    return f"{first[1]}{first[2] or ''}:{port}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """`python -m tasks.children.launchers MODULE SPEC`: take part in another host's training until it ends."""
    from tasks.children.supervise import training_environment
    from tasks.stage.output import Output

    module, spec = sys.argv[1], Path(sys.argv[2])
    while True:
        begun = spec.stat().st_mtime_ns
        runtime = Runtime.model_validate(json.loads(spec.read_text())["runtime"])
        out = Output("training", spec.parent, spec.parent, spec.parent, runtime)
        tied = [sys.executable, "-m", "tasks.children.supervise", str(os.getpid())]  # which ends when this process does
        code = subprocess.call([*tied, *training_command(module, spec, runtime)], env=training_environment(out))
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
