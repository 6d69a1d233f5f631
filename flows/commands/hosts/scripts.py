"""`gristmill hosts`: prints what starts a profile's run on many hosts. `gristmill join`: a further host's part.

It submits nothing. A run is one command on one host: its stages start their trainings on all hosts by themselves
(tasks/children/launchers.py).
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from flows.options import Scheduler
from profiles.load import load
from profiles.schema import Profile
from storage.errors import ConfigError
from storage.store import Store
from tasks.children.join import join_all
from tasks.pretrain.check import check_runtime

NAME = re.compile(r"(?=.*[A-Za-z]|\d+\.\d+\.\d+\.\d+$)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
WORD = re.compile(r"[A-Za-z0-9_.,:-]+")  # a time limit, or partitions
REFERENCE = re.compile(r"[A-Za-z0-9_.:/@-]+")
PORT = 29400  # torchrun's default
STOP_SECONDS = 30  # in addition to a training's time for its last checkpoint
MOUNT = "/store"
ALONE = ("runtime.training.rendezvous=null", "runtime.training.hosts=1")


@dataclass(frozen=True)
class Cluster:
    """Settings that a profile lacks. `hosts` is a number, or comma-separated names. The rest is for Slurm or
    Kubernetes."""

    hosts: str
    time: str | None = None
    partition: str | None = None
    image: str | None = None
    claim: str | None = None

    @property
    def names(self) -> list[str]:
        """The hosts' names, if given."""
        return [] if self.hosts.isdigit() else [name.strip() for name in self.hosts.split(",") if name.strip()]

    @property
    def number(self) -> int:
        """The number of hosts."""
        return int(self.hosts) if self.hosts.isdigit() else len(self.names)


def show_hosts(profile: str, overrides: list[str], scheduler: Scheduler, cluster: Cluster) -> None:
    """Print the job file or the commands. Raises ConfigError for missing or contradictory settings."""
    print(written(profile, overrides, scheduler, cluster), end="")


def written(profile: str, overrides: list[str], scheduler: Scheduler, cluster: Cluster) -> str:
    """The job file or the commands that start the run on the cluster's hosts. Raises like `show_hosts`."""
    _check(cluster, scheduler)
    if scheduler in (Scheduler.TORCHRUN, Scheduler.DEEPSPEED) and not cluster.names:
        raise ConfigError(f"{scheduler} needs the names of the hosts.", "Give them: --hosts node1,node2.")
    # Whichever scheduler starts it, processes and batches must be divisible over the hosts
    as_one = [*_meets(cluster, "host"), "runtime.training.hostfile=null", "runtime.training.launcher=auto"]
    checked = load(profile, [*overrides, *as_one])
    if checked.pretrain is not None:
        check_runtime(checked.pretrain, checked.runtime)
    write = {
        Scheduler.SLURM: _sbatch,
        Scheduler.KUBERNETES: _job_set,
        Scheduler.TORCHRUN: _commands,
        Scheduler.DEEPSPEED: _hostfile,
        Scheduler.RAY: _ray_job,
    }[scheduler]
    return write(load(profile, overrides), profile, overrides, cluster)


def _check(cluster: Cluster, scheduler: Scheduler) -> None:
    """Raises ConfigError for values that a job file or a command would misread."""
    if cluster.number < 1:
        raise ConfigError(f"--hosts {cluster.hosts} names no hosts.", "Give a number, or names such as node1,node2.")
    for name in cluster.names:
        if cluster.names.count(name) > 1:
            raise ConfigError(f"--hosts names {name} twice.", "Name each host once.")
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"--hosts: {name!r} is not a host's name.",
                "Write out each name without a port. For an IPv6 address, give a name that resolves to it.",
            )
    if scheduler == Scheduler.KUBERNETES and cluster.names:
        raise ConfigError("Kubernetes chooses the hosts itself.", f"Give their number: --hosts {cluster.number}.")
    for option, value in {"--time": cluster.time, "--partition": cluster.partition}.items():
        if value is not None and not WORD.fullmatch(value):
            raise ConfigError(f"{option} {value!r} is not valid for Slurm.", "For example --time 2-12:00:00.")
    for option, value in {"--image": cluster.image, "--claim": cluster.claim}.items():
        if value is not None and not REFERENCE.fullmatch(value):
            raise ConfigError(f"{option} {value!r} is not a valid name in Kubernetes.", "Give it as kubectl shows it.")


def join(console: Console, store: str) -> None:
    """Join the trainings of a store's runs until interrupted."""
    work = Store(store).local / "work"
    console.print(f"waiting for trainings in {work}", soft_wrap=True)
    join_all(work, lambda sentence: console.print(sentence, soft_wrap=True))


def _meets(cluster: Cluster, host: str) -> list[str]:
    if cluster.number == 1:
        return [*ALONE]
    return [f"runtime.training.rendezvous={host}:{PORT}", f"runtime.training.hosts={cluster.number}"]


def _no_meeting(profile: Profile) -> list[str]:
    return [] if profile.runtime.training.rendezvous is None else [*ALONE]


def _run(profile: str, settings: list[str]) -> list[str]:
    return ["gristmill", "run", profile, *(word for setting in settings for word in ("--set", setting))]


def _no_hostfile(profile: Profile) -> list[str]:
    return [] if profile.runtime.training.hostfile is None else ["runtime.training.hostfile=null"]


def _gpus(profile: Profile) -> int:
    return 0 if profile.runtime.compute.device == "cpu" else profile.runtime.training.processes


def _stop_seconds(profile: Profile) -> int:
    return math.ceil(profile.runtime.training.stop_grace_seconds) + STOP_SECONDS


def _sbatch(profile: Profile, name: str, overrides: list[str], cluster: Cluster) -> str:
    """An sbatch file: a whole node for each torchrun agent, and SIGTERM early enough for a checkpoint."""
    gpus = _gpus(profile)
    options = {
        "job-name": profile.name,
        "nodes": cluster.number,
        "nodelist": ",".join(cluster.names) or None,
        "ntasks-per-node": 1,
        "gpus-per-node": gpus or None,
        "partition": cluster.partition,
        "time": cluster.time,
        "signal": f"B:TERM@{_stop_seconds(profile)}",
        "open-mode": "append",
    }
    lines = [f"#SBATCH --{key}={value}" for key, value in options.items() if value is not None]
    command = _run(name, [*overrides, *_no_hostfile(profile), *_no_meeting(profile)])
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            "#SBATCH --exclusive",
            "# The run uses the allocation by itself: srun starts torchrun on each node.",
            "# Submitted again, it goes on from the last checkpoint, even on fewer nodes.",
            f"exec {shlex.join(command)}",
            "",
        ]
    )


def _commands(profile: Profile, name: str, overrides: list[str], cluster: Cluster) -> str:
    first, *others = cluster.names
    command = _run(name, [*overrides, *_no_hostfile(profile), *_meets(cluster, first)])
    lines = [f"# on {first}, where the stages run", shlex.join(command)]
    if others:
        join = shlex.join(["gristmill", "join", "--store", profile.runtime.store])
        lines += [f"# on {', '.join(others)}, in the same folder (end it with Ctrl-C after the run)", join]
    return "\n".join([*lines, ""])


def _hostfile(profile: Profile, name: str, overrides: list[str], cluster: Cluster) -> str:
    slots = [f"{host} slots={profile.runtime.training.processes}" for host in cluster.names]
    command = _run(name, [*overrides, *_no_meeting(profile), "runtime.training.hostfile=hostfile"])
    return "\n".join(["cat > hostfile <<'END'", *slots, "END", shlex.join(command), ""])


def _ray_job(profile: Profile, name: str, overrides: list[str], cluster: Cluster) -> str:
    """A Ray job whose Ray Train workers are the hosts (on_ray.py)."""
    if cluster.names:
        raise ConfigError("Ray chooses the hosts itself.", "Give their number: --hosts 4.")
    command = _run(name, [*overrides, *_no_hostfile(profile), *([] if cluster.number > 1 else ALONE)])
    words = ["python", "-m", "flows.commands.hosts.on_ray", str(cluster.number), str(_gpus(profile))]
    started = shlex.join([*words, profile.runtime.store, *command])
    lines = [
        "# The hosts must see this folder and this program under the same paths. RAY_ADDRESS is http://HEAD:8265.",
        "# Submitted again, it goes on from the last checkpoint, even on fewer hosts.",
        f"ray job submit -- sh -c {shlex.quote(f'cd {shlex.quote(str(Path.cwd()))} && exec {started}')}",
    ]
    return "\n".join([*lines, ""])


def _job_set(profile: Profile, name: str, overrides: list[str], cluster: Cluster) -> str:
    """A JobSet (jobset.x-k8s.io) of a leader with the run, whose success is the whole's, and the other hosts."""
    if cluster.image is None or cluster.claim is None:
        raise ConfigError(
            "A Kubernetes manifest needs an image and a volume that all pods share.",
            "Give --image and --claim, the name of a PersistentVolumeClaim with access mode ReadWriteMany.",
        )
    name_set = profile.name.replace("_", "-")
    store = f"runtime.store={MOUNT}"
    meets = _meets(cluster, f"{name_set}-leader-0-0.{name_set}")
    run = _run(name, [*overrides, *_no_hostfile(profile), store, *meets])
    jobs = [_job("leader", 1, run, profile, cluster)]
    if cluster.number > 1:
        jobs.append(_job("others", cluster.number - 1, ["gristmill", "join", "--store", MOUNT], profile, cluster))
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name_set},
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": name_set},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["leader"]},
            "failurePolicy": {"maxRestarts": 3},
            "replicatedJobs": jobs,
        },
    }
    return yaml.safe_dump(manifest, sort_keys=False)


def _job(name: str, pods: int, command: list[str], profile: Profile, cluster: Cluster) -> dict[str, Any]:
    gpus = _gpus(profile)
    mounts = {MOUNT: "store", "/dev/shm": "memory"}
    container = {
        "name": "gristmill",
        "image": cluster.image,
        "command": command,
        **({"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}),
        "volumeMounts": [{"name": volume, "mountPath": path} for path, volume in mounts.items()],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _stop_seconds(profile),
        "containers": [container],
        "volumes": [
            {"name": "store", "persistentVolumeClaim": {"claimName": cluster.claim}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},  # for NCCL: the default is 64 MB
        ],
    }
    counts = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "backoffLimit": 0}
    return {"name": name, "replicas": 1, "template": {"spec": {**counts, "template": {"spec": pod}}}}
