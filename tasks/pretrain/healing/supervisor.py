"""Runs the training child and restarts it as policy.py decides.

The child ends with a typed error; here, in the stage's process, the decision is made, written to healing.json in the
scratch folder, and carried out. A rerun of the stage finds the file and continues from it. The pre-flight of a long run
is a child like any other: what it lacks in memory, the training would lack too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from storage.errors import Divergence, LostProcess, OutOfMemory
from tasks.children.supervise import run_module
from tasks.pretrain.check import SPECIAL
from tasks.pretrain.healing.policy import Decision, Healing, Situation, decide, without_damaged
from tasks.pretrain.preflight import before_training
from tasks.pretrain.spec import TrainSpec
from tasks.stage.output import Output
from tasks.training.checkpoint_marker import complete_checkpoints, remove
from tasks.training.recovery.out_of_memory import kills, true_fault
from tasks.training.recovery.remote_checkpoints import DECISIONS

Fault = Divergence | OutOfMemory | LostProcess


def train_healed(
    spec: TrainSpec, out: Output, on_line: Callable[[dict[str, Any]], None]
) -> tuple[dict[str, Any], Healing]:
    """Run the training to its end; returns what it measured, and the state of recovery.

    Raises what can't be recovered from: the child's typed error, the pre-flight's for a check that failed, or the
    policy's, which says what to change.
    """
    state, checked = spec.scratch / DECISIONS, False
    while True:
        healing = Healing.read(state)
        runtime = healing.runtime(spec.runtime)
        started = spec.model_copy(update={"runtime": runtime, "batch_schedule": healing.batch_schedule})
        heard: dict[str, int] = {"ranks": 0, "step": 0, "share": 0, "micro_batch": 0}

        def hear(line: dict[str, Any], heard: dict[str, int] = heard) -> None:
            nonlocal healing
            if "damaged" in line:
                healing = without_damaged(healing, line["damaged"], line["sound"], line["what"])
                healing.write(state)
            heard.update({name: line[name] for name in heard if name in line})
            if "loss" in line or "note" in line:
                on_line(line)

        killed = kills()
        healed = replace(out, runtime=runtime)
        try:
            if not checked:
                before_training(started, healed, hear)
            checked = True
            measured = run_module("tasks.pretrain.train", started, healed, on_line=hear)
            return measured, healing
        except (Divergence, OutOfMemory, LostProcess) as error:
            fault = true_fault(error, kills() - killed)
            now = Situation(
                config=spec.config.healing,
                samples=spec.config.samples,
                runtime=spec.runtime,
                checkpoints=list(complete_checkpoints(spec.checkpoints)),
                shardable=not {spec.config.optimizer, spec.config.precision} & SPECIAL,
                ranks=heard["ranks"],
                reached=heard["step"],
                share=heard["share"],
                micro_batch=heard["micro_batch"],
            )
            decision = decide(healing, fault, now)
            _do(decision, spec, out)
            if decision.error is not None:
                raise decision.error from error


def _do(decision: Decision, spec: TrainSpec, out: Output) -> None:
    """Remove checkpoints first: a run killed in between then meets the same fault and decision again."""
    for step, folder in complete_checkpoints(spec.checkpoints).items():
        if step > decision.checkpoint and decision.error is None:
            remove(folder)
    decision.healing.write(spec.scratch / DECISIONS)
    event = decision.healing.events[-1]
    resumed = "" if event.stopped else f", resuming from step {event.checkpoint:,}"
    out.warn(f"{event.kind}: {event.what}; {event.action}{resumed}")


def report(healing: Healing, spec: TrainSpec, out: Output) -> None:
    """Report the recoveries of a run in its manifest and in the Prefect UI."""
    skipped = healing.batch_schedule.skipped_before(spec.steps)
    kinds = [event.kind for event in healing.events if not event.stopped]
    # Divergences are part of the result, faults of the machine are not
    out.count(skipped_batches=sum(last - first + 1 for first, last in skipped), rollbacks=kinds.count("divergence"))
    out.fact(restarts=kinds.count("lost process"), out_of_memory=kinds.count("out of memory"))
    if not healing.events:
        return
    out.fact(events=[event.model_dump(mode="json") for event in healing.events])
    rows = [
        {"step": event.step, "event": event.kind, "what": event.what, "remedy": event.action, "from": event.checkpoint}
        for event in healing.events
    ]
    out.table("Events", rows)


def forget(spec: TrainSpec) -> None:
    """Leave nothing in the scratch folder that another run would resume from."""
    for folder in (spec.checkpoints, spec.faults):
        shutil.rmtree(folder, ignore_errors=True)
    (spec.scratch / DECISIONS).unlink(missing_ok=True)
