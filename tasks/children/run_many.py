"""Runs several pieces of work of the same kind in one child, one after another: starting Python, torch and transformers
takes longer than many a measurement. With several GPUs the child shares the pieces out to one process for each.

    for number, result in run_several("tasks.….measure", [(spec, out), …], on_line=…): …

`python -m tasks.children.run_many MODULE LIST` is the child: it runs the module's `run` on each spec. The processes of
several GPUs are its children, in its process group, so that whatever ends it ends them.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from storage.errors import GristmillError, LostProcess
from tasks.children.child import emit, run_as_child, tag
from tasks.children.die_with_parent import tied_to
from tasks.children.environment import training_environment
from tasks.children.spec import ChildSpec
from tasks.children.supervise import Keeps, check_plain, run_child
from tasks.stage.output import Output
from tasks.stage.runtime import ComputeRuntime

OnLine = Callable[[float, dict[str, Any]], None]  # the share of the whole that is done, and a piece's line
VISIBLE = "CUDA_VISIBLE_DEVICES"
POLL_SECONDS = 0.1


def run_several(
    module: str,
    work: Sequence[tuple[ChildSpec, Output]],
    *,
    on_line: OnLine,
    weights: Sequence[int] | None = None,
    devices: Sequence[str] | None = None,
    keeps: Keeps = "nothing",
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run the child, and yield the number and the result of each piece of work. If it fails, the finished pieces are
    yielded first. Raises as `run_child` does. The log is in the first piece's scratch folder.

    Pieces report `done` and `total` (0: unknown). `on_line` gets the sum of their shares, each times its weight, 1 by
    default. `devices` are the GPUs to share the pieces out to, as CUDA_VISIBLE_DEVICES names them, by default all that
    are visible.
    """
    first, out = work[0]
    log, listed = out.scratch / "child.log", out.scratch / "several.json"
    for spec, _ in work:
        for written in (spec.scratch / "spec.json", spec.result, log, listed):
            check_plain(written)
        spec.result.unlink(missing_ok=True)
        (spec.scratch / "spec.json").write_text(spec.model_dump_json())
    specs = [str(spec.scratch / "spec.json") for spec, _ in work]
    uses_gpus = first.runtime.compute.device != "cpu"
    listed.write_text(json.dumps({"specs": specs, "devices": devices, "uses_gpus": uses_gpus, "chosen": None}))
    shares = [0.0] * len(work)

    def hear(line: dict[str, Any]) -> None:
        piece = line.pop("piece")
        if "finished" in line:
            shares[piece] = 1.0
            return
        shares[piece] = min(1.0, line["done"] / line["total"]) if line["total"] else shares[piece]
        on_line(sum(share * weight for share, weight in zip(shares, weights or [1] * len(work), strict=True)), line)

    failure: GristmillError | None = None
    try:
        run_child(
            [sys.executable, "-m", "tasks.children.run_many", module, str(listed)],
            out=out,
            environment=training_environment(first.runtime.compute),
            log=log,
            on_line=hear,
            keeps=keeps,
        )
    except GristmillError as error:
        failure = error
    done = 0
    for number, (spec, _) in enumerate(work):
        if spec.result.exists():
            done += 1
            yield number, json.loads(spec.result.read_text())
    # A process lost after its last result, in a library's clean-up, has done its work
    if failure is not None and not (isinstance(failure, LostProcess) and done == len(work)):
        raise failure


def run(path: Path) -> None:
    """Run the pieces of the list at `path`: the child's side."""
    work = json.loads(path.read_text())
    numbers = list(range(len(work["specs"]))) if work["chosen"] is None else work["chosen"]
    devices = _devices(work) if work["chosen"] is None and len(numbers) > 1 else []
    if len(devices) > 1:
        _share_out(path, work, numbers, devices[: len(numbers)])
        return
    module = importlib.import_module(sys.argv[-2])
    for number in numbers:
        tag(piece=number)
        module.run(Path(work["specs"][number]))
        emit(finished=True)


def _devices(work: dict[str, Any]) -> list[str]:
    """The GPUs, by the names that CUDA_VISIBLE_DEVICES takes."""
    if work["devices"] is not None:
        return [str(device) for device in work["devices"]]
    if not work["uses_gpus"]:
        return []
    import torch

    visible = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    return visible or [str(number) for number in range(torch.cuda.device_count())]


def _share_out(path: Path, work: dict[str, Any], numbers: Sequence[int], devices: Sequence[str]) -> None:
    """Run a process for each device, with its share of the cores. All write to our own output, as a line is one write.
    The first that fails ends all."""
    compute = _share_cores([Path(work["specs"][number]) for number in numbers], len(devices))
    environment = training_environment(compute, len(devices))
    running = []
    for place, device in enumerate(devices):
        part = path.with_suffix(f".{place}.json")
        part.write_text(json.dumps({**work, "chosen": numbers[place :: len(devices)]}))
        command = tied_to(os.getpid(), [sys.executable, "-m", "tasks.children.run_many", sys.argv[-2], str(part)])
        running.append(subprocess.Popen(command, env={**environment, VISIBLE: device}))
    while running:
        time.sleep(POLL_SECONDS)
        ended = [process for process in running if process.poll() is not None]
        if failed := [process.returncode for process in ended if process.returncode]:
            for process in running:
                process.kill()
            sys.exit(failed[0] if failed[0] > 0 else 128 - failed[0])
        running = [process for process in running if process not in ended]


def _share_cores(specs: Sequence[Path], processes: int) -> ComputeRuntime:
    """Set the threads of each piece to one process's share. Returns the compute settings of the first piece."""
    runtimes = []
    for path in specs:
        spec = json.loads(path.read_text())
        runtimes.append(ComputeRuntime.model_validate(spec["runtime"]["compute"]))
        spec["runtime"]["compute"]["threads"] = runtimes[-1].cpu_threads(processes)
        path.write_text(json.dumps(spec))
    return runtimes[0]


if __name__ == "__main__":
    run_as_child(run)
