"""What sending checkpoints to a bucket costs a training: seconds that it waits, and seconds until they are there.

    python -m benchmarks.pretrain.remote_checkpoints --megabytes 200

A checkpoint of this size, in files of 50 MB, is sent to a local S3 server by one rank while this process computes; what
it computes in the meantime is compared with what it does in as long without.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from storage.files.flush import flush_tree
from tasks.children.spec import ChildSpec
from tasks.stage.runtime import Runtime
from tasks.training.checkpoint_marker import CheckpointMarker, SingleProcess, flush_and_digest
from tasks.training.recovery.remote_checkpoints import RemoteCheckpoints
from tests.pipeline.runs import ROOT
from tests.s3_server import client_of

FILE = 50_000_000
SERVER = """
import time
from tests.s3_server import s3_server
with s3_server() as address:
    print(address, flush=True)
    time.sleep(600)
"""


def steps_within(going: Callable[[], bool]) -> int:
    """Products of two matrices while it goes on."""
    matrix, count = torch.ones(512, 512), 0
    while going():
        matrix @ matrix
        count += 1
    return count


def write(folder: Path, megabytes: int) -> None:
    """A whole checkpoint on the disk."""
    folder.mkdir(parents=True)
    for number in range(max(1, megabytes * 1_000_000 // FILE)):
        (folder / f"{number}.bin").write_bytes(np.random.default_rng(number).bytes(FILE))
    flush_tree(folder)
    CheckpointMarker(identity="mine", step=1, files=flush_and_digest(folder)).write(folder)


def main() -> None:
    """Print what it costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    megabytes = parser.parse_args().megabytes
    torch.set_num_threads(1)
    server = subprocess.Popen([sys.executable, "-c", SERVER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        os.environ |= client_of(server.stdout.readline().strip())
        import s3fs

        s3fs.S3FileSystem().mkdir("bucket")
        with tempfile.TemporaryDirectory() as folder:
            runtime = Runtime().model_copy(update={"store": "s3://bucket/store"})
            scratch = Path(folder)
            spec = ChildSpec(runtime=runtime, scratch=scratch, out=scratch / "out", remote="checkpoints/pretrain/key")
            write(scratch / "checkpoints/step-1", megabytes)
            remote = RemoteCheckpoints(spec, SingleProcess(), tell=print)
            began, spent = time.monotonic(), time.process_time()
            remote.send(scratch / "checkpoints/step-1", 1)
            stalled = time.monotonic() - began
            beside = steps_within(lambda: remote.sending is not None)
            took, cpu = time.monotonic() - began, time.process_time() - spent
            until = time.process_time() + cpu
            alone = steps_within(lambda: time.process_time() < until)
            print(f"{megabytes} MB: training waits {1000 * stalled:.1f} ms; there after {took:.1f} s, {cpu:.1f} CPU s")
            print(f"steps beside it: {beside}; in as many CPU s alone: {alone} ({beside / alone:.0%})")
    finally:
        server.kill()


if __name__ == "__main__":
    main()
