"""Follows TRL's trainer: writes the log, reports progress, marks checkpoints as whole, and stops on request."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from storage.errors import TrainingError
from tasks.children.child import emit
from tasks.children.orderly_stop import OrderlyStop
from tasks.posttrain.checkpoints import mark_whole
from tasks.posttrain.held_out_change import HeldOutChange
from tasks.posttrain.spec import PosttrainSpec
from tasks.posttrain.token_means import ROWS
from tasks.training.logs import append_log
from tasks.training.recovery.fault_injection import FaultInjection
from tasks.training.recovery.remote_checkpoints import RemoteCheckpoints

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

SILENCE_SECONDS = 3.0  # after which progress is reported again
FAULTS = ("oom", "kill", "full")  # that can be injected: only pretraining recovers from the other kinds
# The trainer's name → the name in the log. Each method adds its own.
LOGGED = {"loss": "loss", "learning_rate": "learning_rate", "grad_norm": "gradient_norm"}


@dataclass(frozen=True)
class _Ranks:
    """The trainer's processes, as `Ranks` of checkpoint_marker.py."""

    rank: int
    size: int

    def gathered(self, value: Any) -> list[Any]:
        """Each rank's value, on every rank."""
        values = [value] * self.size
        if self.size > 1:
            torch.distributed.all_gather_object(values, value)
        return values


class LogCallback(TrainerCallback):
    """Writes a log row per step, flushed to disk before a checkpoint is marked. Raises TrainingError for a NaN."""

    def __init__(self, spec: PosttrainSpec, measures: Mapping[str, str], curve: str = "loss") -> None:
        self.spec = spec
        self.logged = {**LOGGED, **measures}
        self.curve = curve
        self.change = HeldOutChange(spec.scratch)
        self.unwritten: list[dict[str, Any]] = []
        self.stopped = False
        self.reported, self.validated = time.monotonic(), 0  # when, and batches of the current validation

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start to listen for requests to stop."""
        self.faults = FaultInjection(self.spec.faults, args.process_index, args.device, known=FAULTS)
        self.stop = OrderlyStop(
            self.spec.stop,
            ranks=args.world_size,
            grace=self.spec.runtime.training.stop_grace_seconds,
            reports=state.is_world_process_zero,
        )
        ranks = _Ranks(args.process_index, args.world_size)
        self.remote = RemoteCheckpoints(self.spec, ranks, tell=lambda sentence: emit(note=sentence))

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Inject the faults of this step."""
        with self.faults.at(state.global_step + 1, 0.0):
            pass

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save and end if a stop was requested."""
        if self.stop.agreed() and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop listening for requests."""
        self.stop.close()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, float], **_: Any
    ) -> None:
        """Log a step. The trainer also calls this at the end with totals, which are ignored."""
        if "loss" not in logs:
            return
        row: dict[str, Any] = {"step": state.global_step}
        row |= {ours: float(logs[theirs]) for theirs, ours in self.logged.items() if theirs in logs}
        self._check(state.global_step, row)
        if not state.is_world_process_zero:
            return
        self.unwritten.append(row)
        due = state.global_step % self.spec.runtime.training.log_every == 0 or self._silent()
        if state.global_step == state.max_steps or due:
            self._report(state, **{self.curve: row[self.curve]})

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Report progress within a validation, which may take longer than many steps."""
        self.validated += 1
        if state.is_world_process_zero and self._silent():
            self._report(state, batch=self.validated)

    def _silent(self) -> bool:
        return time.monotonic() - self.reported >= SILENCE_SECONDS

    def _report(self, state: TrainerState, **values: Any) -> None:
        self.reported = time.monotonic()
        emit(step=state.global_step, steps=state.max_steps, **values)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: dict[str, Any], **_: Any
    ) -> None:
        """Log a validation. Called after the `on_log` of the same step, and before the first step."""
        self.validated = 0
        measures = {
            f"validation_{ours}": float(metrics[f"eval_{theirs}"])
            for theirs, ours in self.logged.items()
            if f"eval_{theirs}" in metrics
        }
        if not state.global_step and self.spec.reference is not None:
            # The model is still its own reference, so its rewards differ by rounding only
            measures.pop("validation_preference_accuracy", None)
        self._check(state.global_step, measures)
        if not state.is_world_process_zero:
            return
        if state.global_step:
            self.unwritten[-1] |= measures
        if state.global_step in (0, state.max_steps):
            self.change.keep(state.global_step, measures, metrics.get(ROWS))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Flush the log, mark the checkpoint that the trainer has written as whole, and send it to the bucket."""
        if args.world_size > 1:
            torch.distributed.barrier()  # every rank writes its own files, and the marker needs all of them
        if state.is_world_process_zero:
            self.flush()
            mark_whole(self.spec, state.global_step, args.world_size)
        if self.stopped:
            self.remote.finish()  # while an earlier one is on its way, `send` would skip this one
        self.remote.send(self.spec.checkpoints / f"checkpoint-{state.global_step}", state.global_step)
        if self.stopped:
            self.remote.finish()  # the process is about to end

    def _check(self, step: int, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            if not math.isfinite(value):
                raise TrainingError(
                    f"Step {step}: {name} is {value}.", f"Lower {self.spec.method}.learning_rate and run again."
                )

    def flush(self) -> None:
        """Write the log rows that are not on disk yet."""
        append_log(self.spec.log, self.unwritten)
        self.unwritten = []
