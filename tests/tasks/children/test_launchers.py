"""How training processes are started: the commands, and two hosts that meet."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ConfigError
from tasks.children import launchers
from tasks.children.environment import training_environment
from tasks.children.heartbeat import FILE, shown_alive
from tasks.children.launchers import free_port, training_command
from tasks.children.spec import ChildSpec
from tasks.children.supervise import run_child, run_module
from tasks.stage import machine
from tasks.stage.output import Output
from tests.runtimes import runtime_of

ROOT = Path(__file__).parents[3]
SLURM = {"SLURM_JOB_ID": "4711", "SLURM_NNODES": "3", "SLURM_JOB_NODELIST": "gpu[07-08],cpu1"}


def command(environment: dict[str, str] | None = None, **runtime: Any) -> str:
    words = training_command(
        "tasks.demo", Path("/scratch/spec.json"), runtime_of(**runtime).training, environment or {}
    )
    return " ".join(words).replace(sys.executable, "python")


def test_one_process_needs_no_launcher() -> None:
    assert command() == "python -m tasks.demo /scratch/spec.json"
    assert command({"SLURM_JOB_ID": "4711", "SLURM_NNODES": "1"}) == "python -m tasks.demo /scratch/spec.json"


def test_many_hosts_by_hostfile_by_slurm_and_by_rendezvous() -> None:
    assert command(hostfile="hosts", processes=8) == (
        "python -m deepspeed.launcher.runner --hostfile hosts --num_gpus 8 --no_local_rank "
        "--module tasks.demo /scratch/spec.json"
    )
    assert command(SLURM, processes=4) == (
        "srun --nodes=3 --ntasks=3 --ntasks-per-node=1 --kill-on-bad-exit=1 "
        "python -m torch.distributed.run --nnodes=3 --nproc-per-node=4 --rdzv-backend=c10d "
        "--rdzv-endpoint=gpu07:24711 --rdzv-id=gristmill-4711 --max-restarts=0 "
        "--rdzv-conf=join_timeout=600 --module tasks.demo /scratch/spec.json"
    )
    assert command(rendezvous="trainer:29400", hosts=2, processes=8) == (
        "python -m torch.distributed.run --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d "
        "--rdzv-endpoint=trainer:29400 --rdzv-id=gristmill-6bbbe00d61f0 --max-restarts=0 "
        "--rdzv-conf=join_timeout=600 --module tasks.demo /scratch/spec.json"
    )


def test_the_stage_tells_torchrun_that_an_address_is_its_own_where_its_name_leads_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # no packet is sent: it chooses the address to send from
        own = probe.getsockname()[0]

    def told(address: str, *, leads: bool = True) -> bool:
        training = runtime_of(rendezvous=f"{address}:29400", hosts=2).training
        words = training_command("tasks.demo", Path("spec.json"), training, {}, leads=leads)
        return "--rdzv-conf=join_timeout=600,is_host=1" in words

    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert told(own)
    assert not told(own, leads=False), "one of two on a host"
    assert not told("127.0.0.1")
    assert not told("198.51.100.7")
    assert not told("no-such-host")
    monkeypatch.setattr(socket, "gethostname", lambda: own)
    assert not told(own), "torchrun knows, and leaves the place to another where two are on a host"


@pytest.mark.parametrize(
    ("nodes", "first"), [("n1", "n1"), ("a-2,b", "a-2"), ("gpu[3,5-9]", "gpu3"), ("x[01-02]", "x01")]
)
def test_slurms_first_node_is_the_meeting_point(nodes: str, first: str) -> None:
    assert f"--rdzv-endpoint={first}:24711 " in command(SLURM | {"SLURM_JOB_NODELIST": nodes})


@pytest.mark.parametrize(
    ("job", "cpus"),
    [
        ({"SLURM_CPUS_PER_TASK": "16", "SLURM_TASKS_PER_NODE": "1(x3)", "SLURM_JOB_CPUS_PER_NODE": "72(x3)"}, 16),
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_TASKS_PER_NODE": "8(x2),6"}, 24),
        ({"SLURM_CPUS_PER_TASK": "4"}, 4),
        ({"SLURM_JOB_CPUS_PER_NODE": "72(x2),36", "SLURM_CPUS_ON_NODE": "72", "SLURM_TASKS_PER_NODE": "1(x3)"}, 36),
        ({"SLURM_CPUS_ON_NODE": "12"}, 12),
        ({}, None),
    ],
    ids=str,
)
def test_slurms_agents_have_the_cores_of_their_nodes(job: dict[str, str], cpus: int | None) -> None:
    words = command(SLURM | job, processes=2).split()
    assert [word for word in words if word.startswith("--cpus-per-task")] == (
        [] if cpus is None else [f"--cpus-per-task={cpus}"]
    )


def test_an_agent_sees_all_gpus_of_its_node_where_the_job_deals_them_out_to_tasks() -> None:
    dealt_out = SLURM | {"SLURM_GPUS_PER_TASK": "1", "SLURM_GPUS_ON_NODE": "4"}
    assert " --gpus-per-node=4 " in command(dealt_out, processes=4)
    assert "--gpus" not in command(SLURM | {"SLURM_GPUS_ON_NODE": "4"}, processes=4)


@pytest.mark.parametrize(
    ("runtime", "named"),
    [
        ({"hosts": 2}, "each needs the other"),
        ({"rendezvous": "a:1"}, "each needs the other"),
        ({"rendezvous": "a:1", "hosts": 2, "hostfile": "hosts"}, "both say"),
        ({"rendezvous": "a:1", "hosts": 2, "launcher": "deepspeed"}, r"deepspeed.* runtime\.training\.rendezvous asks"),
        ({"hostfile": "hosts", "launcher": "torchrun"}, r"torchrun.* runtime\.training\.hostfile asks"),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(runtime: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        command(**runtime)


def test_training_processes_share_the_cores_of_their_host_unless_threads_are_asked_for() -> None:
    cores = machine.cores()
    assert runtime_of(processes=1).rank_threads == runtime_of(processes=1).compute.cpu_threads() == cores
    assert runtime_of(processes=2).rank_threads == max(1, cores // 2)
    assert runtime_of(processes=1024).rank_threads == 1
    assert runtime_of(processes=2, threads=7).rank_threads == 7
    environment = training_environment(runtime_of().compute, processes=2)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == str(max(1, cores // 2))


SCRIPT = """
import os, sys
from pathlib import Path
import torch.distributed as dist
from tasks.children.child import emit, run_as_child
from tests.runtimes import runtime_of
from tasks.pretrain.world import join
import torch
def work(spec):
    world = join(runtime_of(device="cpu", processes=1024))
    total = world.sum(torch.tensor([float(world.rank + 1)])).item()
    emit(rank=world.rank, size=world.size, total=total, group=os.environ["GROUP_RANK"], threads=torch.get_num_threads())
    world.leave()
if __name__ == "__main__":
    run_as_child(work)
"""


def start(tmp_path: Path, **settings: Any) -> tuple[Output, Path, dict[str, str]]:
    runtime = runtime_of(threads=1, device="cpu", timeout_minutes=2, **settings)
    out = Output.at(tmp_path, stage="demo", runtime=runtime)
    (tmp_path / "met.py").write_text(SCRIPT)
    spec = out.scratch / "spec.json"
    spec.write_text(json.dumps({"runtime": runtime.model_dump()}))
    return out, spec, {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}


def test_a_rendezvous_at_which_another_program_listens_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "LEAVING_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"{address}, where another program of this host listens"):
            launchers.check_meeting_place(address)
    launchers.check_meeting_place(address)
    launchers.check_meeting_place("192.0.2.1:29400")  # of another host


@pytest.mark.soak
def test_two_hosts_meet_at_a_rendezvous_and_are_one_world(tmp_path: Path) -> None:
    port = free_port()
    out, spec, paths = start(tmp_path, rendezvous=f"127.0.0.1:{port}", hosts=2)
    said: list[dict[str, Any]] = []
    command = [sys.executable, "-m", "tasks.children.join", str(tmp_path.parent)]
    other = subprocess.Popen(command, env=os.environ | paths, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    try:
        with shown_alive(spec.with_name(FILE), "met"):
            run_child(
                training_command("met", spec, out.runtime.training),
                out=out,
                environment=training_environment(out.runtime.compute) | paths,
                log=tmp_path / "log",
                on_line=said.append,
            )
        told = []
        while "it ended\n" not in told:
            told.append(other.stdout.readline())
            assert told[-1], told
    finally:
        other.kill()
        other.communicate()
    assert told[0] == f"joining {tmp_path.name}\n"
    here = [json.loads(line) for line in told if line.startswith("{")]
    assert {line["rank"] for line in said + here} == {0, 1}
    assert {line["group"] for line in said + here} == {"0", "1"}
    assert all(line["size"] == 2 and line["total"] == 3.0 and line["threads"] == 1 for line in said + here)


CHECKS = """
from tasks.children.child import run_as_child
from tasks.children.spec import ChildSpec
from tasks.pretrain.world import join
from tests.runtimes import runtime_of
def work(path):
    world = join(runtime_of(device="cpu", processes=1024))
    if world.rank == 0:
        ChildSpec.model_validate_json(path.read_text()).finish({"size": world.size})
    world.leave()
if __name__ == "__main__":
    run_as_child(work)
"""


@pytest.mark.soak
def test_hosts_that_join_find_checks_that_have_a_folder_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    out, _, paths = start(tmp_path, rendezvous=f"127.0.0.1:{port}", hosts=2)
    (tmp_path / "met.py").write_text(CHECKS)
    monkeypatch.setenv("PYTHONPATH", paths["PYTHONPATH"])
    own = ChildSpec(runtime=out.runtime, scratch=out.scratch / "own", out=out.path)
    own.scratch.mkdir()
    other = subprocess.Popen([sys.executable, "-m", "tasks.children.join", str(tmp_path.parent)])
    try:
        assert run_module("met", own, out, on_line=lambda line: None) == {"size": 2}
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_launchers_ranks_pass_a_typed_error_on_and_end_together(launcher: str, tmp_path: Path) -> None:
    out, spec, paths = start(tmp_path, processes=2, launcher=launcher)
    (tmp_path / "met.py").write_text(
        "import os, time\nfrom storage.errors import ParityError\nfrom tasks.children.child import run_as_child\n"
        "def work(spec):\n"
        "    if os.environ['RANK'] == '1': raise ParityError('Rank 1 differs.', 'Look.')\n"
        "    time.sleep(600)\n"
        "run_as_child(work)\n"
    )
    began = time.monotonic()
    with pytest.raises(Exception, match=r"Rank 1 differs\.") as caught:
        run_child(
            training_command("met", spec, out.runtime.training),
            out=out,
            environment=training_environment(out.runtime.compute) | paths,
            log=tmp_path / "log",
        )
    assert type(caught.value).__name__ == "ParityError"
    assert time.monotonic() - began < 90
