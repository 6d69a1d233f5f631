"""Pre-flight checks: can a long run learn, does it fit, does it resume? Takes seconds.

bench.py     what the checks share: a small version of the run
learning.py  the model: first loss, gradients, causality, overfit one batch
repeating.py what must be reproducible: data, checkpoints, ranks
machine.py   memory, disk, threads, allocator, device, libraries
__main__.py  the child, once per rank
by_hand.py   for `gristmill doctor PROFILE`

It runs in its own processes, launched as the training is, and in its own folder, so that it can't affect the result.
Long runs start with it, under the same healing as the training; `gristmill doctor PROFILE` runs it alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

from storage.errors import OutOfMemory, TrainingError
from tasks.children.supervise import run_module
from tasks.pretrain.spec import TrainSpec
from tasks.stage.output import Output
from tasks.training.checkpoint_marker import complete_checkpoints

MEMORY = "memory"  # the check that the healer may act on
AUTO_STEPS = 500  # for shorter runs the checks are not worth their time

Line = dict[str, Any]  # a check's name, state, value and remedy


def wanted(spec: TrainSpec) -> bool:
    """Whether the runtime asks for it; `auto` does for long runs that don't resume from a checkpoint."""
    if spec.runtime.pretrain.preflight != "auto":
        return spec.runtime.pretrain.preflight == "always"
    return spec.steps >= AUTO_STEPS and not complete_checkpoints(spec.checkpoints)


def preflight(
    spec: TrainSpec,
    out: Output,
    on_check: Callable[[Line], None] = lambda line: None,
    on_other: Callable[[Line], None] = lambda line: None,
) -> list[Line]:
    """Run the checks in children as the runtime says; `on_check` gets each when it is done, `on_other` what else the
    children say. Returns all checks, in order."""
    own = spec.model_copy(update={"scratch": out.scratch / "preflight"})
    own.scratch.mkdir(parents=True, exist_ok=True)

    def on_line(line: Line) -> None:
        if "check" in line:
            on_check(line["check"])
        else:
            on_other(line)

    measured = run_module("tasks.pretrain.preflight", own, out, on_line=on_line)
    shutil.rmtree(own.scratch)
    checks: list[Line] = measured["checks"]
    return checks


def before_training(spec: TrainSpec, out: Output, hear: Callable[[Line], None]) -> None:
    """Run the checks if the run wants them, report them in a few lines, and keep them in the artifact's facts. `hear`
    gets what the children say besides.

    Raises TrainingError with each check that failed, what was measured, and a remedy; OutOfMemory if it is the memory.
    """
    if not wanted(spec):
        return
    done: list[Line] = []

    def on_check(line: Line) -> None:
        done.append(line)
        out.progress(len(done), 0, "checks", f"pre-flight: {line['name']}")

    checks = preflight(spec, out, on_check, hear)
    out.fact(preflight=checks)
    for line in checks:
        if line["state"] == "advice":
            out.warn(f"pre-flight: {line['name']}: {line['value']}. {line['remedy']}")
    refuse_failed(checks)
    seconds = sum(line["seconds"] for line in checks)
    out.note(f"pre-flight: {len(checks)} checks passed in {seconds:.1f} s")


def refuse_failed(checks: Sequence[Line]) -> None:
    """Raises OutOfMemory where only the memory failed, which the healer may mend; TrainingError where more did."""
    failed = [line for line in checks if line["state"] == "failed"]
    if failed:
        named = "\n".join(f"  {line['name']}: {line['value']}" for line in failed)
        if [line["name"] for line in failed] == [MEMORY]:
            raise OutOfMemory(f"A step takes too much memory: {failed[0]['value']}.", failed[0]["remedy"])
        raise TrainingError(
            f"Pre-flight checks failed:\n{named}",
            f"{failed[0]['remedy']} (runtime.pretrain.preflight=never skips the checks.)",
        )
