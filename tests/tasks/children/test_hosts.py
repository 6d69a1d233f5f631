"""The hosts and the GPU that a training needs, checked before anything starts."""

from __future__ import annotations

import ctypes
from importlib.metadata import version
from pathlib import Path

import pytest

from storage.errors import ConfigError
from tasks.children.devices import LIBRARY, missing_gpu
from tasks.children.hosts import check_hosts, check_hosts_here, hosts_of, read_hostfile
from tests.runtimes import runtime_of

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_NNODES": "3"}


def test_a_hostfile_is_read_as_deepspeed_reads_it(tmp_path: Path) -> None:
    hosts = tmp_path / "hostfile"
    hosts.write_text("# two hosts\n\nworker-1 slots=8\n  worker-2\tslots=4 # half of one\n")
    assert read_hostfile(str(hosts)) == {"worker-1": 8, "worker-2": 4}
    training = runtime_of(hostfile=str(hosts), processes=4).training
    check_hosts(training)
    check_hosts_here(training)
    assert hosts_of(training, SLURM) == 2


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"root:x:0:0:root:/root:/bin/bash\n", "line 1 is not a host with its slots"),
        (b"a slots=8\na slots=8\n", "line 2 repeats a"),
        (b"# none yet\n", "lists no hosts"),
        (b"\xff\xfe\x00", "not text"),
        (b"a slots=8\nb slots=2\n", r"processes is 4, but .* has 2 slots for b"),
        (None, "Is a directory"),
    ],
    ids=str,
)
def test_a_hostfile_that_would_not_be_followed_is_refused(content: bytes | None, named: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ConfigError, match=named):
        check_hosts(runtime_of(hostfile=str(path), processes=4).training)


def test_a_hostfile_may_be_missing_where_nothing_is_trained(tmp_path: Path) -> None:
    training = runtime_of(hostfile=str(tmp_path / "nope")).training
    check_hosts(training)
    assert hosts_of(training) is None
    with pytest.raises(ConfigError, match=r"training\.hostfile is .*nope, which does not exist"):
        check_hosts_here(training)


def test_without_a_hostfile_hosts_are_those_of_the_rendezvous_or_of_slurm() -> None:
    assert hosts_of(runtime_of().training, {}) == 1
    assert hosts_of(runtime_of().training, SLURM) == 3
    assert hosts_of(runtime_of(rendezvous="a:1", hosts=2).training, SLURM) == 2


def test_a_gpu_is_missed_only_for_certain(tmp_path: Path) -> None:
    if version("torch").endswith("+cpu"):
        assert "built for CPUs only" in (missing_gpu() or "")
        return
    assert missing_gpu({"CUDA_VISIBLE_DEVICES": ""}) == "CUDA_VISIBLE_DEVICES hides every GPU"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    assert missing_gpu({}, tmp_path) is None
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        assert missing_gpu({}, tmp_path / "dev") == "this machine lacks a GPU driver"
