"""Checkpoints in a bucket: a training that loses its machine resumes on another one, with the same bytes as result."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from storage.errors import StoreError
from storage.store import Store
from tasks.children.spec import ChildSpec
from tasks.training.checkpoint_marker import CheckpointMarker, SingleProcess, flush_and_digest, newest_sound
from tasks.training.recovery.remote_checkpoints import RemoteCheckpoints, fetch_newest
from tests.pipeline.runs import ROOT
from tests.runtimes import runtime_of
from tests.s3_proxy import PATIENT, Proxy
from tests.s3_server import client_of, s3_server
from tests.tasks.pretrain.tiny_training import make_data

IN_TWO = {"processes": 2, "micro_batch": 2}


def start(store: str, folder: Path, machine: str, **runtime: Any) -> subprocess.Popen[str]:
    """A training on its own machine, whose cache is that folder."""
    command = [sys.executable, "-m", "tests.tasks.training.remote_run", store, str(folder / "data")]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / machine)}
    return subprocess.Popen(
        [*command, json.dumps(runtime)],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """The digest of the trained artifact, and the notes."""
    digest, noted = process.communicate()
    assert process.returncode == 0, noted
    return digest, noted


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Any:
    with s3_server() as address:
        proxy = Proxy(address)
        for name, value in (client_of(proxy.url) | PATIENT).items():
            monkeypatch.setenv(name, value)
        import s3fs

        name = uuid.uuid4().hex
        s3fs.S3FileSystem().mkdir(name)
        yield f"s3://{name}/store", proxy
        proxy.shutdown()


def whole(store: Store) -> list[str]:
    return sorted(name for name in store.sizes("checkpoints") if name.endswith("/remote.json"))


@pytest.mark.soak
@pytest.mark.parametrize(
    "runtime", [{"engine": name, **IN_TWO} for name in ("ddp", "fsdp")], ids=lambda runtime: runtime["engine"]
)
def test_a_training_whose_machine_is_gone_goes_on_elsewhere(
    runtime: dict[str, Any], bucket: tuple[str, Proxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, proxy = bucket
    make_data(tmp_path / "data")
    undisturbed, _ = ended(start(str(tmp_path / "folder"), tmp_path, "here", **runtime))
    lost = start(url, tmp_path, "one", **runtime)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "watching"))
    store = Store(url)
    while not whole(store):
        assert lost.poll() is None, lost.communicate()[1]
        time.sleep(0.2)
    os.kill(lost.pid, signal.SIGKILL)
    lost.communicate()
    shutil.rmtree(tmp_path / "one")
    store.discard("locks")  # they expire in five minutes
    assert not list(store.locations())
    proxy.rain(["500", "reset", "torn upload", "cut download"], 0.05, 1)
    digest, noted = ended(start(url, tmp_path, "two", **runtime))
    assert "fetched the checkpoint of step" in noted
    assert "resuming from the checkpoint of step" in noted
    assert digest == undisturbed
    assert not store.sizes("checkpoints"), "they are not needed any more"


# --- one rank in this process, a bucket in memory ---------------------------------------------------------------


@pytest.fixture
def spec(tmp_path: Path) -> ChildSpec:
    runtime = runtime_of(keep_checkpoints=2).model_copy(update={"store": f"memory://{uuid.uuid4().hex}"})
    return ChildSpec(runtime=runtime, scratch=tmp_path / "one", out=tmp_path / "out", remote="checkpoints/pretrain/key")


def write(spec: ChildSpec, step: int) -> Path:
    """A whole checkpoint on disk, with the log up to it and a snapshot beside it."""
    folder = spec.checkpoints / f"step-{step:09d}"
    (folder / "parts").mkdir(parents=True)
    (folder / "parts" / "0.bin").write_bytes(bytes([step]) * 1000)
    (folder / "1.bin").write_bytes(bytes([step]) * 10)
    spec.log.write_text("".join(f'{{"step": {one}}}\n' for one in range(1, step + 1)))
    (spec.scratch / "snapshots" / "step-1").mkdir(parents=True, exist_ok=True)
    (spec.scratch / "snapshots" / "step-1" / "model.bin").write_bytes(b"model")
    CheckpointMarker(identity="mine", step=step, files=flush_and_digest(folder)).write(folder)
    return folder


def sent(spec: ChildSpec, *steps: int, **options: Any) -> list[str]:
    """Write and send these, one after another. Returns the notes."""
    told: list[str] = []
    remote = RemoteCheckpoints(spec, SingleProcess(), tell=told.append, **options)
    for step in steps:
        remote.send(write(spec, step), step)
        remote.finish()
    return told


def elsewhere(spec: ChildSpec) -> ChildSpec:
    return spec.model_copy(update={"scratch": spec.scratch.with_name("two")})


def files(spec: ChildSpec) -> dict[str, bytes]:
    found = {path.relative_to(spec.scratch).as_posix(): path for path in spec.scratch.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith("sent/")}


def test_what_was_sent_last_is_fetched_whole_with_what_lies_beside(spec: ChildSpec) -> None:
    assert sent(spec, 1, 2, 3) == []
    other, told = elsewhere(spec), list[str]()
    fetch_newest(other, told.append)
    assert told == ["fetched the checkpoint of step 3 from the bucket"]
    mine = files(spec)
    assert files(other) == {name: data for name, data in mine.items() if not re.search("step-00000000[12]", name)}
    assert newest_sound(other.checkpoints, "mine")[1] == 3
    store = Store(spec.runtime.store)
    assert [int(name.split("-")[1]) for name in whole(store)] == [2, 3], "older ones go, as on disk"
    assert len([name for name in store.sizes(spec.remote) if name.startswith("beside/")]) == 3, "a snapshot, two logs"
    fetch_newest(other, told.append)
    assert len(told) == 1, "it is here"


def test_a_checkpoint_without_its_marker_or_with_other_bytes_does_not_count(spec: ChildSpec) -> None:
    sent(spec, 1, 2, 3, keep_every=1)
    store = Store(spec.runtime.store)
    newest, damaged = (name.rpartition("/")[0] for name in reversed(whole(store)[1:]))
    store.discard(f"checkpoints/{newest}/remote.json")
    store.write_text(f"checkpoints/{damaged}/1.bin", "torn")
    other, told = elsewhere(spec), list[str]()
    fetch_newest(other, told.append)
    assert told == [
        "the checkpoint of step 2 in the bucket is damaged",
        "fetched the checkpoint of step 1 from the bucket",
    ]


@pytest.mark.parametrize("name", ["../x", "spec.json", "checkpoints/step-1/a", "snapshots/step-1/../../x", "stop"])
def test_a_marker_that_names_what_no_resume_needs_is_none(name: str, spec: ChildSpec) -> None:
    sent(spec, 1)
    store = Store(spec.runtime.store)
    (place,) = whole(store)
    marker = json.loads(store.read_bytes(f"checkpoints/{place}") or b"")
    marker["beside"][name] = marker["beside"]["log.jsonl"]
    store.write_text(f"checkpoints/{place}", json.dumps(marker))
    other, told = elsewhere(spec), list[str]()
    fetch_newest(other, told.append)
    assert (told, files(other)) == ([], {})


def test_what_healing_has_decided_here_is_not_undone_by_the_bucket(spec: ChildSpec) -> None:
    sent(spec, 1, 2, 3)
    other, told = elsewhere(spec), list[str]()
    write(other, 1)
    (other.scratch / "healing.json").write_text("{}")
    fetch_newest(other, told.append)
    assert told == []
    sent(other, 2)
    third, told = spec.model_copy(update={"scratch": spec.scratch.with_name("three")}), list[str]()
    fetch_newest(third, told.append)
    assert told == ["fetched the checkpoint of step 2 from the bucket"], "the training has gone back before step 3"
    assert (third.scratch / "healing.json").read_text() == "{}"


def test_a_bucket_that_fails_is_told_and_the_next_one_is_sent(spec: ChildSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Store, *arguments: Any) -> None:
        raise StoreError("The store can't be reached.", "Check it.")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "send", failing)
        told = sent(spec, 1)
    assert told == ["the checkpoint of step 1 is not in the bucket: The store can't be reached."]
    assert sent(spec, 2) == []
    assert [int(name.split("-")[1]) for name in whole(Store(spec.runtime.store))] == [2]


def test_training_does_not_wait_for_what_is_on_its_way(spec: ChildSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    going, send = threading.Event(), Store.send

    def slow(self: Store, *arguments: Any) -> None:
        going.wait()
        send(self, *arguments)

    monkeypatch.setattr(Store, "send", slow)
    told: list[str] = []
    remote = RemoteCheckpoints(spec, SingleProcess(), tell=told.append)
    remote.send(write(spec, 1), 1)
    assert remote.sending == 1
    remote.send(write(spec, 2), 2)
    assert told == ["the checkpoint of step 2 is not sent: the one before is still on its way"]
    going.set()
    remote.finish()
    assert remote.sending is None
    assert [int(name.split("-")[1]) for name in whole(Store(spec.runtime.store))] == [1]
