"""`python -m benchmarks.start`: what a run costs beside its work.

Commands of the profile `smoke` up to its first stage, of 200 documents, which takes under a second: help; a run that
makes it; the same again, all from the store; both again with a Prefect server that runs. Then `--many` runs of the last
kind, two at a time, of which each must stand Completed on the server with each of its task runs. Shards have a
benchmark of their own: `python -m benchmarks.shards --shards 1000`.

Last, the children that train and measure, up to where all that they need is imported: each as a new Python, as the
first fork of a new server, which imports it, and as a later one.

Wall seconds and CPU seconds of the whole tree (of a server that runs beside, not), medians of `--runs`; "first line"
is the time until a command says anything.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from benchmarks.measure import ROOT, count, end_as_interrupted, ended
from flows.guard.password import new_password, variables
from flows.server import SERVE, patient_client, start, stop, wait
from tasks.checks.quiet import ENVIRONMENT
from tasks.children.environment import training_environment
from tasks.children.launchers import free_port
from tasks.children.warm.processes import fork
from tasks.children.warm.server import import_for
from tasks.stage.runtime import ComputeRuntime

SMALL = "download.sources=[{kind: embedded, corpora: [encyclopedia], limit: 200}]"
CHILDREN = ("tasks.pretrain.train", "tasks.posttrain.train", "tasks.evaluate.score.run", "tasks.export.run")
PAGE = 200  # what Prefect's API lists at once


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=count, default=5, help="of each command (default 5)")
    parser.add_argument("--many", type=int, default=12, help="runs on one server (default 12)")
    asked = parser.parse_args()
    end_as_interrupted()
    with tempfile.TemporaryDirectory() as folder:
        own = {**os.environ, "PREFECT_HOME": f"{folder}/prefect"}
        own.pop("PREFECT_API_URL", None)
        made = ["run", "smoke", "--to=download", "--set", SMALL, "--store", f"{folder}/store"]
        print("| command | wall (s) | CPU (s) | first line (s) |")
        print("|---|---|---|---|", flush=True)
        show("help", [["--help"]] * asked.runs, own)
        new = [[*made[:-1], f"{folder}/store-{number}"] for number in range(asked.runs)]
        show("one stage", new, own)
        measured(made, own)
        show("all from the store", [made] * asked.runs, own)
        with server({**own, "PREFECT_HOME": f"{folder}/named"}) as beside:
            named = {**beside, "PREFECT_HOME": own["PREFECT_HOME"]}
            served = [[*made[:-1], f"{folder}/served-{number}"] for number in range(asked.runs)]
            show("one stage, with a server", served, named)
            show("all from the store, with a server", [made] * asked.runs, named)
            before = states(named)
            began = time.monotonic()
            with ThreadPoolExecutor(2) as two:
                list(two.map(lambda _: measured(made, named), range(asked.many)))
            rate = 60 * asked.many / (time.monotonic() - began)
            print(f"\n{asked.many} runs on one server, {rate:.1f} a minute: {told(states(named) - before)}")
    print("\n| child | new (s) | first fork (s) | later fork (s) |\n|---|---|---|---|", flush=True)
    for module in CHILDREN:
        show_child(module, asked.runs)


def show(name: str, commands: list[list[str]], environment: dict[str, str]) -> None:
    """Print the medians of these commands."""
    rows = [measured(command, environment) for command in commands]
    wall, cpu, first = (statistics.median(figures) for figures in zip(*rows, strict=True))
    print(f"| {name} | {wall:.2f} | {cpu:.2f} | {first:.2f} |", flush=True)


def measured(command: list[str], environment: dict[str, str]) -> tuple[float, float, float]:
    """Wall and CPU seconds of a command, and seconds to its first line."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *command],
        cwd=ROOT.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    with ended(process, None):
        said = process.stdout.readline()
        first = time.monotonic() - began
        said += process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, said.decode()
    return time.monotonic() - began, _cpu(used), first


def show_child(module: str, runs: int) -> None:
    """Print the medians of starting one, which ends at once: its spec is empty."""
    command = [sys.executable, "-m", module, os.devnull]
    alone = [sys.executable, "-c", f"from {import_for.__module__} import import_for; import_for({module!r})"]
    new, first, later = list[float](), list[float](), list[float]()
    for run in range(runs):
        own = {"BENCHMARK": f"{module} {run}"}  # servers are kept by their variables
        environment = training_environment(ComputeRuntime(device="cpu")) | own
        began = time.monotonic()
        subprocess.run(alone, env=environment, capture_output=True, check=True)
        new.append(time.monotonic() - began)
        for took in (first, later):
            began = time.monotonic()
            with open(os.devnull, "wb") as nowhere:
                fork(command, environment, nowhere.fileno()).wait()
            took.append(time.monotonic() - began)
    print(f"| {module} | {' | '.join(f'{statistics.median(took):.2f}' for took in (new, first, later))} |", flush=True)


def _cpu(used: resource.struct_rusage) -> float:
    return used.ru_utime + used.ru_stime


@contextmanager
def server(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """The environment of clients of a Prefect server that runs beside, in this one."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    environment = {**environment, **ENVIRONMENT, "PREFECT_API_URL": f"{address}/api", **variables(new_password())}
    with tempfile.TemporaryFile() as said:
        process = start([*SERVE, str(port)], environment, said)
        try:
            wait(address, process, said, environment)
            yield environment
        finally:
            stop([process])


def states(environment: dict[str, str]) -> Counter[str]:
    """How many flow runs and task runs of a server are in each state."""
    found: Counter[str] = Counter()
    for kind in ("flow_runs", "task_runs"):
        offset = 0
        with patient_client(environment) as client:
            while rows := client.post(f"/{kind}/filter", json={"limit": PAGE, "offset": offset}).json():
                found.update(f"{kind.replace('_', ' ')} {row['state_name']}" for row in rows)
                offset += PAGE
    return found


def told(found: Counter[str]) -> str:
    """`12 flow runs Completed, 12 task runs Cached`."""
    return ", ".join(f"{count} {state}" for state, count in sorted(found.items()))


if __name__ == "__main__":
    main()
