"""The training loop: steps, and between them validation, checkpoints and progress reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from storage.shards.arrays import Int64
from tasks.children.child import emit
from tasks.children.orderly_stop import OrderlyStop
from tasks.pretrain import averages
from tasks.pretrain.checkpoints.branches import leave
from tasks.pretrain.checkpoints.manager import Checkpoints
from tasks.pretrain.checkpoints.snapshots import Snapshots
from tasks.pretrain.engines import Engine, MicroBatch
from tasks.pretrain.evaluation import Validation
from tasks.pretrain.healing.heartbeat import Heartbeat
from tasks.pretrain.insight.observe import Insight
from tasks.pretrain.loader import StepLoader, compute_ahead
from tasks.pretrain.log import Log
from tasks.pretrain.recipe.schedule import learning_rate
from tasks.pretrain.spec import TrainSpec
from tasks.training.recovery.fault_injection import FaultInjection


@dataclass
class Training:
    """All parts of a run. `begun` is the step that it resumed from, 0 for a new run."""

    spec: TrainSpec
    engine: Engine
    loader: StepLoader
    validation: Validation
    checkpoints: Checkpoints
    snapshots: Snapshots
    log: Log
    insight: Insight
    heartbeat: Heartbeat
    faults: FaultInjection
    stop: OrderlyStop
    begun: int

    def run(self) -> bool:
        """Take the remaining steps. Returns False if the training was stopped before the last one."""
        insight = self.insight
        steps = range(self.begun + 1, self.spec.steps + 1)
        prepared = compute_ahead(self._batches, steps)
        stops = False
        for step in steps:
            reports = step % self.spec.runtime.training.log_every == 0 or step == self.spec.steps
            validates = step % self.spec.config.validation_every == 0 or step == self.spec.steps
            saves = step % self.spec.runtime.training.checkpoint_every == 0 and step < self.spec.steps
            branches = self.spec.branches is not None and step == self.spec.common_steps
            insight.before_step(step, reported=reports)
            batches = _moved(next(prepared), self.engine.world.device)
            insight.lap("data")
            self._step(step, batches)
            insight.after_step(step, batches)
            stops = self.stop.agreed() and step < self.spec.steps
            if validates or reports or saves or stops or branches:
                insight.lap("training", wait=True)
                validation_loss = self.validation.loss(self.engine, self.heartbeat) if validates else None
                insight.lap("validation")
                self.log.flush(validation_loss)
                insight.lap("logging")
            self.snapshots.take(self.engine, step)
            # `calm` after the flush: the rows since the last one have been judged by now
            if (saves or stops) and self.log.monitor.calm:
                self.checkpoints.save(self.engine, step, last=stops)
            if branches and self.log.monitor.calm:
                leave(self.engine, step)
            insight.lap("checkpoints")
            self.heartbeat()
            if reports:
                measured = insight.report(step, self.log.rows)
                if self.engine.world.reports:
                    emit(step=step, loss=self.log.rows[-1]["loss"], **measured)
                insight.lap("logging")
            if stops:
                break
        self.stop.close()
        self.checkpoints.finish()
        insight.close()
        return not stops

    def _step(self, step: int, batches: list[MicroBatch]) -> None:
        rate = learning_rate(self.spec.config, step, self.spec.steps) * self.spec.batch_schedule.rate_scale(step)
        with self.faults.at(step, rate) as faulty_rate:
            loss, norm = self.engine.step(batches, faulty_rate)
        averages.update(self.engine, step)
        self.log.add(step, rate, loss, norm)

    def _batches(self, step: int) -> list[MicroBatch]:
        """This rank's micro-batches of a step. For a GPU they are in pinned memory, to be copied while it computes."""
        engine = self.engine
        served = self.loader.micro_batches(
            step,
            rank=engine.data_rank,
            ranks=engine.data_ranks,
            size=engine.micro_batch,
            number=self.spec.batch_schedule.batch(step),
        )
        pinned = engine.world.device.type == "cuda"

        def tensor(part: Int64) -> Tensor:
            whole = torch.from_numpy(np.ascontiguousarray(part))  # copying a view would not be asynchronous
            return whole.pin_memory() if pinned else whole

        return [
            (tensor(ids), tensor(targets), None if positions is None else tensor(positions))
            for ids, targets, positions in served
        ]


def _moved(batches: list[MicroBatch], device: torch.device) -> list[MicroBatch]:
    return [
        (
            ids.to(device, non_blocking=True),
            targets.to(device, non_blocking=True),
            None if positions is None else positions.to(device, non_blocking=True),
        )
        for ids, targets, positions in batches
    ]
