"""Pre-flight: in seconds, before a long run, whether it can learn, fits, and resumes.

bench.py     what the checks share
learning.py  the model: first loss, gradients, causality, overfit one batch
repeating.py what must come out twice: data, checkpoints, the ranks
machine.py   memory, disk, threads, allocator, device, libraries
__main__.py  the child, once a rank

It runs in processes of its own, launched as the training is, in a folder of its own, so nothing of it can reach the
result. A run does it of itself before many steps; `gristmill doctor PROFILE` does it by hand.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from storage.errors import TrainingError
from tasks.children.supervise import run_module
from tasks.pretrain.spec import TrainSpec
from tasks.stage.output import Output
from tasks.training.checkpoint_marker import complete_checkpoints

AUTO_STEPS = 500  # a run of fewer is over before the checks have paid for themselves

Line = dict[str, Any]  # a check's name, state, value and remedy


def wanted(spec: TrainSpec) -> bool:
    """Whether the runtime asks for it; `auto` does before many steps, unless the run goes on from a checkpoint."""
    if spec.runtime.pretrain.preflight != "auto":
        return spec.runtime.pretrain.preflight == "always"
    return spec.steps >= AUTO_STEPS and not complete_checkpoints(spec.checkpoints)


def preflight(spec: TrainSpec, out: Output, on_check: Callable[[Line], None] = lambda line: None) -> list[Line]:
    """Run the checks in children as the runtime has them; `on_check` sees each as it is done. The checks, in order."""
    own = spec.model_copy(update={"scratch": out.scratch / "preflight"})
    own.scratch.mkdir(parents=True, exist_ok=True)

    def on_line(line: Line) -> None:
        if "check" in line:
            on_check(line["check"])

    measured = run_module("tasks.pretrain.preflight", own, out, on_line=on_line)
    shutil.rmtree(own.scratch)
    checks: list[Line] = measured["checks"]
    return checks


def before_training(spec: TrainSpec, out: Output) -> None:
    """The checks of a run that wants them: told in a few lines, kept among the artifact's facts.

    Raises TrainingError naming the first check that failed, what was measured and what to do.
    """
    if not wanted(spec):
        return
    done: list[Line] = []

    def on_check(line: Line) -> None:
        done.append(line)
        out.progress(len(done), 0, "checks", f"pre-flight: {line['name']}")

    checks = preflight(spec, out, on_check)
    out.fact(preflight=checks)
    for line in checks:
        if line["state"] == "advice":
            out.note(f"pre-flight: {line['name']}: {line['value']}. {line['remedy']}")
    failed = [line for line in checks if line["state"] == "failed"]
    if failed:
        named = "\n".join(f"  {line['name']}: {line['value']}" for line in failed)
        raise TrainingError(
            f"The pre-flight found what would spoil the run:\n{named}",
            f"{failed[0]['remedy']} (runtime.pretrain.preflight=never goes without.)",
        )
    seconds = sum(line["seconds"] for line in checks)
    out.note(f"pre-flight: {len(checks)} checks passed in {seconds:.1f} s")
