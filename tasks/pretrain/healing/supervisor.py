"""Runs the training child and restarts it as policy.py decides.

The child ends with a typed error. Here, in the stage's process, the decision is made, written to healing.json in the
scratch folder, and carried out. A rerun of the stage finds the file and continues from it. The pre-flight of a long run
is healed like the training: if it runs out of memory, the training would too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from storage.errors import Divergence, LostProcess, OutOfMemory
from tasks.children.supervise import run_module
from tasks.pretrain.check import is_shardable
from tasks.pretrain.healing.divergence import SUSTAINED
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
    """Run the training to its end. Returns its measurements, and the state of recovery.

    Raises errors that can't be recovered from: the child's typed error, the pre-flight's for a check that failed, or
    the policy's, which says what to change.
    """
    state, checked = spec.scratch / DECISIONS, False
    while True:  # each turn is one child, from the decision on disk, as a rerun of the stage would begin
        healing = Healing.read(state)
        runtime = healing.runtime(spec.runtime)
        # Whether a longer training would have met this too, only steps before the decay can say
        judged = [event.step + SUSTAINED for event in healing.events if event.kind == "divergence"]
        late = any(step > spec.common_steps for step in judged)
        started = spec.model_copy(
            update={
                "runtime": runtime,
                "batch_schedule": healing.batch_schedule,
                "branches": None if late else spec.branches,
            }
        )
        heard: dict[str, int] = {"ranks": 0, "step": 0, "share": 0, "micro_batch": 0}

        def hear(line: dict[str, Any], heard: dict[str, int] = heard) -> None:
            nonlocal healing
            if "damaged" in line:  # the child dropped a checkpoint itself, and goes on
                healing = without_damaged(healing, line["damaged"], line["sound"], line["what"])
                healing.write(state)
            heard.update({name: line[name] for name in heard if name in line})
            if "loss" in line or "note" in line:
                on_line(line)

        killed = kills()  # so far: the kernel's count says whether one was for lack of memory
        healed = replace(out, runtime=runtime)
        try:
            if not checked:
                before_training(started, healed, hear)
            checked = True  # for this run of the stage: a restart repeats only a pre-flight that failed
            measured = run_module("tasks.pretrain.train", started, healed, on_line=hear)
            return measured, healing
        except (Divergence, OutOfMemory, LostProcess) as error:
            fault = true_fault(error, kills() - killed)
            now = Situation(
                config=spec.config.healing,
                samples=spec.config.samples,
                runtime=spec.runtime,
                checkpoints=list(complete_checkpoints(spec.checkpoints)),
                shardable=is_shardable({spec.config.optimizer, spec.config.precision}, spec.runtime.pretrain),
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
    """Carry out a decision. Checkpoints are removed first: a run killed in between meets the same fault and decision
    again, whereas a written decision would make it resume from a later checkpoint, past the batches to skip."""
    for step, folder in complete_checkpoints(spec.checkpoints).items():
        if step > decision.checkpoint and decision.error is None:
            remove(folder)
    decision.healing.write(spec.scratch / DECISIONS)
    event = decision.healing.events[-1]
    resumed = "" if event.stopped else f", resuming from step {event.checkpoint:,}"
    out.warn(f"{event.kind}: {event.what}, so {event.action}{resumed}")


def report(healing: Healing, spec: TrainSpec, out: Output) -> None:
    """Report the recoveries of a run in its manifest and in the Prefect UI."""
    skipped = healing.batch_schedule.skipped_before(spec.steps)
    kinds = [event.kind for event in healing.events if not event.stopped]
    # Divergences change the result, and so count. Faults of the machine don't: they are facts
    out.count(skipped_batches=sum(last - first + 1 for first, last in skipped), rollbacks=kinds.count("divergence"))
    out.fact(restarts=kinds.count("lost process"), out_of_memory=kinds.count("out of memory"))
    if skipped:
        out.fact(skipped=skipped)
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
