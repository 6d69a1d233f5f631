"""The output of `gristmill hosts`: accepted by Slurm if installed, valid YAML, and run in namespaces."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.commands.hosts import Cluster, written
from flows.options import Scheduler
from storage.errors import ConfigError


def printed(scheduler: Scheduler, hosts: str, profile: str = "gpu-8x", *overrides: str, **cluster: Any) -> str:
    return written(profile, list(overrides), scheduler, Cluster(hosts, **cluster))


def test_an_sbatch_file_has_whole_nodes_and_time_for_a_checkpoint() -> None:
    lines = printed(Scheduler.SLURM, "4", time="24:00:00", partition="long").splitlines()
    assert lines[0] == "#!/bin/bash"
    options = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")}
    assert options == {
        "--job-name=gpu-8x",
        "--nodes=4",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "--partition=long",
        "--time=24:00:00",
        "--signal=B:TERM@55",
        "--open-mode=append",
        "--exclusive",
    }
    assert lines[-1] == "exec gristmill run gpu-8x"
    assert "--gpus" not in printed(Scheduler.SLURM, "2", "tiny")
    assert "#SBATCH --nodelist=a,b\n" in printed(Scheduler.SLURM, "a,b", "tiny")
    assert printed(Scheduler.SLURM, "2", "cluster").endswith("--set runtime.training.hostfile=null\n")


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="needs Slurm")
def test_slurm_accepts_the_file(tmp_path: Path) -> None:
    if subprocess.run(["sinfo", "--noheader"], capture_output=True, timeout=60).returncode:
        pytest.skip("needs a Slurm controller")
    file = tmp_path / "job.sh"
    file.write_text(printed(Scheduler.SLURM, "1", "tiny", time="10:00"))
    tried = subprocess.run(["sbatch", "--test-only", str(file)], capture_output=True, text=True, timeout=60)
    assert tried.returncode == 0, tried.stderr


@pytest.mark.parametrize("hosts", [1, 4])
def test_a_job_set_has_a_pod_for_each_host_and_a_gpu_for_each_process(hosts: int) -> None:
    text = printed(Scheduler.KUBERNETES, str(hosts), image="registry/gristmill:1", claim="store")
    manifest = yaml.safe_load(text)
    jobs = {job["name"]: job for job in manifest["spec"]["replicatedJobs"]}
    assert (manifest["apiVersion"], manifest["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert sum(job["replicas"] * job["template"]["spec"]["parallelism"] for job in jobs.values()) == hosts
    assert set(jobs) == ({"leader", "others"} if hosts > 1 else {"leader"})
    for job in jobs.values():
        spec = job["template"]["spec"]
        assert spec["completions"] == spec["parallelism"]
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    leader = jobs["leader"]["template"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert ("runtime.training.rendezvous=gpu-8x-leader-0-0.gpu-8x:29400" in leader) == (hosts > 1)
    assert f"runtime.training.hosts={hosts}" in leader


def test_hosts_are_told_by_name_what_to_run() -> None:
    lines = printed(Scheduler.TORCHRUN, "a,b,c,d", "gpu-8x", "pretrain.learning_rate=1e-3").splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "gristmill run gpu-8x --set pretrain.learning_rate=1e-3 --set runtime.training.rendezvous=a:29400 "
        "--set runtime.training.hosts=4",
        "gristmill join --store store",
    ]
    told = printed(Scheduler.DEEPSPEED, "a,b", "cluster")
    assert "a slots=8\nb slots=8\n" in told
    assert shlex.split(told.splitlines()[-1])[-1] == "runtime.training.hostfile=hostfile"


def of_ray(told: str) -> list[str]:
    """The words that a job of Ray runs, in the folder where it was printed."""
    *_, submitted = told.splitlines()
    *_, shell = shlex.split(submitted)
    there, _, started = shell.partition(" && exec ")
    assert (submitted.startswith("ray job submit -- sh -c "), there) == (True, f"cd {shlex.quote(str(Path.cwd()))}")
    return shlex.split(started)


def test_a_job_of_ray_has_a_worker_for_each_host_and_a_gpu_for_each_process() -> None:
    settings = ["--set", "pretrain.learning_rate=1e-3"]
    words = of_ray(printed(Scheduler.RAY, "4", "gpu-8x", settings[1]))
    module = ["python", "-m", "flows.commands.hosts.on_ray"]
    assert words == [*module, "4", "8", "store", "gristmill", "run", "gpu-8x", *settings]
    alone = of_ray(printed(Scheduler.RAY, "1", "tiny"))
    assert alone[3:6] == ["1", "0", "store"]
    assert "runtime.training.rendezvous=null" in alone


@pytest.mark.soak
def test_workers_of_ray_train_what_processes_of_torchrun_do(tmp_path: Path) -> None:
    pytest.importorskip("ray.train", exc_type=ImportError)
    store = tmp_path / "store"
    overrides = [f"runtime.store={store}", "runtime.compute.threads=1"]
    words = of_ray(printed(Scheduler.RAY, "2", "smoke", *overrides))
    environment = os.environ | {
        "HOME": str(tmp_path),
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": str(Path.cwd()),
        "RAY_TMPDIR": tempfile.mkdtemp(prefix="ray-"),  # sockets' names are short
    }
    run = [sys.executable, "-m", "flows.cli", *words[words.index("gristmill") + 1 :], "--to", "pretrain"]

    def digests() -> list[str]:
        manifests = [json.loads(path.read_text()) for path in store.glob("artifacts/pretrain/*/manifest.json")]
        return [manifest["digest"] for manifest in manifests if manifest["facts"]["processes"] == 2]

    subprocess.run(
        [sys.executable, *words[1:], "--to", "pretrain"], cwd=tmp_path, env=environment, check=True, timeout=1800
    )
    (on_ray,) = digests()
    alone = ["--set", "runtime.training.processes=2", "--refresh", "pretrain"]
    subprocess.run([*run, *alone], cwd=tmp_path, env=environment, check=True, timeout=1800)
    assert digests() == [on_ray], "it would be another generation"


@pytest.mark.parametrize(
    ("scheduler", "hosts", "says"),
    [
        (Scheduler.SLURM, "3", "24 processes can't share evenly"),
        (Scheduler.SLURM, "0", "names no hosts"),
        (Scheduler.TORCHRUN, "a,a", "names a twice"),
        (Scheduler.TORCHRUN, "fe80::1,fe80::2", "'fe80::1' is not a host's name"),
        (Scheduler.TORCHRUN, "node1:1234,node2", "'node1:1234' is not a host's name"),
        (Scheduler.TORCHRUN, "a\nrm x,b", "is not a host's name"),
        (Scheduler.SLURM, "-1", "'-1' is not a host's name"),
        (Scheduler.SLURM, "2.5", "'2.5' is not a host's name"),
        (Scheduler.SLURM, "node[1-4]", "is not a host's name"),
        (Scheduler.KUBERNETES, "a,b", "Kubernetes chooses the hosts itself"),
        (Scheduler.TORCHRUN, "4", "needs the names"),
        (Scheduler.KUBERNETES, "4", "needs an image"),
        (Scheduler.RAY, "a,b", "Ray chooses the hosts itself"),
    ],
    ids=str,
)
def test_what_could_not_run_is_refused(scheduler: Scheduler, hosts: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        printed(scheduler, hosts)


@pytest.mark.parametrize(
    ("scheduler", "options", "says"),
    [
        (Scheduler.SLURM, {"time": "1:00\nrm x"}, "is not valid for Slurm"),
        (Scheduler.SLURM, {"partition": "a b"}, "is not valid for Slurm"),
        (Scheduler.KUBERNETES, {"image": "a b", "claim": "c"}, "is not a valid name in Kubernetes"),
    ],
)
def test_what_would_be_a_line_of_its_own_is_refused(scheduler: Scheduler, options: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        written("gpu-8x", [], scheduler, Cluster("2", **options))
