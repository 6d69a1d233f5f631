"""`python -m benchmarks.corpus_to_tokens.hosts`: JSONL in, token shards out, by Dask on two hosts.

The hosts are network namespaces of this machine with addresses of their own and one file system, so they need root.
Each has a worker with one thread; the scheduler and the run are on the first. The digests of all artifacts must be
those of one worker without Dask, which runs after it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.corpus_to_tokens.__main__ import lines, to_tokens, written_profile
from benchmarks.corpus_to_tokens.workers import STAGES
from benchmarks.measure import corpus, corpus_parser, environment
from benchmarks.memory import REAL, sized
from storage.store import Store
from tests.hosts.network import two_hosts, why_not

PORT = 8786
WORKER = ("--nworkers", "1", "--nthreads", "1", "--memory-limit", "0", "--no-dashboard")


def main() -> int:
    """Run both, print the table. Returns 1 where digests differ, 3 where hosts can't be created."""
    parser = corpus_parser(__doc__, megabytes=1000)
    options = parser.parse_args()
    if why := why_not():
        print(why)
        return 3
    data = options.data.resolve()
    text = lines(sized(data, corpus(data, REAL), options.megabytes))
    found = [measured(text, run) for run in (on_two_hosts, alone)]
    print("| workers | s | CPU s of stages |\n|---|---|---|")
    for name, (seconds, cpu, _) in zip(("two of Dask, on two hosts", "one, without Dask"), found, strict=True):
        print(f"| {name} | {seconds:.1f} | {cpu:.1f} |")
    same = found[0][2] == found[1][2]
    print(
        f"\n{options.megabytes:g} MB. Digests of {len(found[0][2])} artifacts: {'the same' if same else 'DIFFERENT'}."
    )
    return int(not same)


def measured(text: Path, run: Callable[[Path, Path], None]) -> tuple[float, float, dict[str, str]]:
    """Wall seconds of a run, CPU seconds of its stages, and its digests by stage."""
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        began = time.monotonic()
        run(written_profile(text, Path(folder), small=True), Path(folder))
        seconds = time.monotonic() - began
        made = {one.stage: one for _, one in Store(f"{folder}/store").manifests()}
        cpu = sum(made[name].facts["cpu_seconds"] for name in STAGES)
        return seconds, cpu, {name: one.digest for name, one in made.items()}


def on_two_hosts(profile: Path, folder: Path) -> None:
    """The command with two workers of Dask, the run and the scheduler on the first host."""
    with two_hosts() as hosts, (folder / "log").open("w") as log:
        first, address, variables = hosts[0], f"tcp://{hosts[0].address}:{PORT}", environment(1)
        dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", first.address, "--port", str(PORT)]
        first.start([*dask, "--no-dashboard"], log, variables)
        for host in hosts:
            dask = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--host", host.address, *WORKER]
            host.start([*dask, "--local-directory", f"{folder}/{host.name}"], log, variables)
        command = to_tokens(profile, folder / "store", workers=2)
        settings = (f"--set=runtime.data.{key}" for key in ("executor=dask", f"address={address}"))
        if status := first.start([*command, *settings], log, variables).wait():
            raise SystemExit(f"the run ended with {status}: {(folder / 'log').read_text()[-2000:]}")


def alone(profile: Path, folder: Path) -> None:
    """The command with one worker."""
    command = to_tokens(profile, folder / "store")
    subprocess.run(command, env=environment(1), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)


if __name__ == "__main__":
    sys.exit(main())
