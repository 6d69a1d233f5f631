"""Pre-flight checks: can a long run learn, does it fit, does it resume? Takes seconds.

bench.py            a small version of the run, which the checks share
learning.py         the model: first loss, gradients, causality, overfitting one batch
reproducibility.py  data, checkpoints and ranks
machine.py          memory, disk, threads, allocator, device, libraries
__main__.py         the child, once per rank
standalone.py       for `gristmill doctor PROFILE`

The checks run in their own processes, launched like the training, and in their own folder, so that they can't affect
the result. Long runs start with them, under the same healing as the training. `gristmill doctor PROFILE` runs only the
checks.
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

MEMORY = "memory"  # the check that healing may act on
AUTO_STEPS = 500  # for shorter runs the checks aren't worth their time

Line = dict[str, Any]  # a check's name, state, value and remedy


def should_run(spec: TrainSpec) -> bool:
    """Whether the runtime wants the checks. `auto` wants them for long runs that don't resume from a checkpoint. They
    are of a new model: a base's first loss isn't that of chance."""
    if spec.base is not None:
        return False
    if spec.runtime.pretrain.preflight != "auto":
        return spec.runtime.pretrain.preflight == "always"
    return spec.steps >= AUTO_STEPS and not complete_checkpoints(spec.checkpoints)


def preflight(
    spec: TrainSpec,
    out: Output,
    on_check: Callable[[Line], None] = lambda line: None,
    on_other: Callable[[Line], None] = lambda line: None,
) -> list[Line]:
    """Run the checks in children as the runtime says. `on_check` gets each finished check, `on_other` the children's
    other lines. Returns all checks, in order."""
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
    gets the children's other lines.

    Raises TrainingError with each failed check, its measurement and a remedy, or OutOfMemory if only the memory failed.
    """
    if not should_run(spec):
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
    """Raises OutOfMemory, which healing may fix, if only the memory failed, and TrainingError if anything else did."""
    failed = [line for line in checks if line["state"] == "failed"]
    if failed:
        listed = "\n".join(f"  {line['name']}: {line['value']}" for line in failed)
        if [line["name"] for line in failed] == [MEMORY]:
            raise OutOfMemory(f"A step takes too much memory: {failed[0]['value']}.", failed[0]["remedy"])
        raise TrainingError(
            f"Pre-flight checks failed:\n{listed}",
            f"{failed[0]['remedy']} (runtime.pretrain.preflight=never skips the checks.)",
        )
