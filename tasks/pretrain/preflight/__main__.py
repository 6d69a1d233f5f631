"""The pre-flight child: `python -m tasks.pretrain.preflight SPEC`, once per rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.checks.check import Check
from tasks.children.child import emit, run_as_child
from tasks.pretrain.preflight import learning, machine, reproducibility
from tasks.pretrain.preflight.bench import Bench
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World, join
from tasks.training.recovery.out_of_memory import memory_named

# Cheap ones first. `overfit` and `checkpoint` change the small engine, so they follow those that need a fresh one
CHECKS: tuple[Callable[[Bench], Check], ...] = (
    machine.libraries,
    machine.device,
    machine.threads,
    machine.allocator,
    machine.disk,
    reproducibility.shards,
    reproducibility.loader,
    learning.first_loss,
    reproducibility.ranks,
    learning.gradients,
    learning.causality,
    learning.overfit,
    reproducibility.checkpoint,
    machine.memory,
)


def check_all(path: Path) -> None:
    """Run every check on every rank. Rank 0 reports each. Unreadable data ends the run, since the other checks need it.

    Raises OutOfMemory on the rank where memory runs out, whose exit ends the other ranks.
    """
    spec = TrainSpec.model_validate_json(path.read_text())
    world = join(spec.runtime)
    if world.reports:
        emit(ranks=world.size)
    bench, lines = Bench(spec, world), []
    for check in CHECKS:
        started = time.perf_counter()
        with memory_named(f"Memory ran out in the pre-flight's check {check.__name__}", machine.LESS_MEMORY):
            outcome = worst(check(bench), world)
        line: dict[str, Any] = {**outcome.as_line(), "seconds": round(time.perf_counter() - started, 2)}
        lines.append(line)
        if world.first:
            emit(check=line)
        if check is reproducibility.shards and outcome.state == "failed":
            break
    if world.first:
        spec.finish({"checks": lines})
    world.leave()


def worst(check: Check, world: World) -> Check:
    """The check's worst outcome over all ranks: failed if it failed on one."""
    order = ("failed", "advice", "passed")
    return min(world.gathered(check), key=lambda one: order.index(one.state))


if __name__ == "__main__":
    run_as_child(check_all)
