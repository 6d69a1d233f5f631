"""The training child: `python -m tasks.pretrain.train SPEC`, once a rank.

A step is a pure function of (weights, optimizer states, step number): data order, learning rate and validation
windows all follow from the number. So a resume is a load, and nothing else has to be remembered.
"""

from __future__ import annotations

import json
import math
import resource
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.convert import save
from storage.errors import TrainingError
from storage.token_stream import TokenStream
from tasks.launch import emit, run_as_child
from tasks.logs import append_log, cut_log
from tasks.pretrain.checkpoints import Checkpoints
from tasks.pretrain.engines import Engine, MicroBatch, open_engine
from tasks.pretrain.evaluation import Validation, write_samples
from tasks.pretrain.loader import StepLoader, ahead, open_loader
from tasks.pretrain.schedule import learning_rate
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World, join


@dataclass
class Log:
    """Rows of the run. Losses wait on the device until they are needed: reading one would stop a GPU."""

    path: Path
    world: World
    rows: list[dict[str, Any]]
    waiting: list[tuple[int, float, Tensor, Tensor]] = field(default_factory=list)

    def add(self, step: int, rate: float, loss: Tensor, norm: Tensor) -> None:
        """Note a step; this rank's loss and the global gradient norm."""
        self.waiting.append((step, rate, loss, norm))

    def flush(self, validation_loss: float | None = None) -> None:
        """Write what waits; `validation_loss` belongs to the last step. Raises TrainingError for NaN or infinity."""
        if not self.waiting:
            return
        losses = self.world.mean(torch.stack([loss for _, _, loss, _ in self.waiting])).tolist()
        new = []
        for (step, rate, _, norm), loss in zip(self.waiting, losses, strict=True):
            new.append({"step": step, "loss": loss, "learning_rate": rate, "gradient_norm": float(norm)})
        if validation_loss is not None:
            new[-1]["validation_loss"] = validation_loss
        self.waiting = []
        for row in new:
            for name, value in row.items():
                if not math.isfinite(value):
                    raise TrainingError(
                        f"Step {row['step']}: {name} is {value}.",
                        "Lower pretrain.learning_rate or gradient_clip, or lengthen the warmup, and run again.",
                    )
        self.rows += new
        if self.world.first:
            append_log(self.path, new)


def train(path: Path) -> None:
    """Train as the spec says, from the last checkpoint if there is one; rank 0 leaves the model and the result."""
    spec = TrainSpec.model_validate_json(path.read_text())
    world = join(spec.runtime)
    loader = open_loader(spec.train, spec.config, context=spec.shape.context, tokenizer_digest=spec.tokenizer_digest)
    validation = Validation(
        TokenStream(spec.validation, tokenizer_digest=spec.tokenizer_digest),
        context=spec.shape.context, tokens=spec.config.validation_tokens, world=world,
    )  # fmt: skip
    checkpoints = Checkpoints(spec.checkpoints, spec.identity, world=world)
    begun = checkpoints.latest()
    engine = open_engine(spec, world)
    if begun:
        checkpoints.load(engine, begun)
    log = Log(spec.log, world, cut_log(spec.log, begun) if world.first or begun else [])
    world.wait()
    seconds = _run(spec, engine, loader, validation, checkpoints, log, begun)
    _finish(spec, engine, loader, validation, log, begun, seconds)
    world.leave()


def _run(
    spec: TrainSpec,
    engine: Engine,
    loader: StepLoader,
    validation: Validation,
    checkpoints: Checkpoints,
    log: Log,
    begun: int,
) -> float:
    """The steps after `begun`; the seconds that they took, validation and checkpoints left out."""
    config, runtime, world = spec.config, spec.runtime, engine.world
    training = 0.0
    last = (begun, 0.0)
    steps = range(begun + 1, spec.steps + 1)
    prepared = ahead(partial(_batches, loader, engine), steps)
    for step in steps:
        started = time.perf_counter()
        rate = learning_rate(
            step, steps=spec.steps, peak=config.learning_rate, warmup_steps=config.warmup_steps,
            final_share=config.final_share,
        )  # fmt: skip
        loss, norm = engine.step(_moved(next(prepared), world.device), rate)
        log.add(step, rate, loss, norm)
        validates = step % config.validation_every == 0 or step == spec.steps
        reports = step % runtime.log_every == 0 or step == spec.steps
        keeps = step % runtime.checkpoint_every == 0 and step < spec.steps
        if reports and not validates:
            log.flush()
        training += time.perf_counter() - started
        if validates:
            log.flush(validation.loss(engine))
        if keeps:
            log.flush()
            checkpoints.save(engine, step)
        if reports and world.first:
            speed = (step - last[0]) * config.global_batch * spec.shape.context / max(training - last[1], 1e-9)
            emit(step=step, loss=log.rows[-1]["loss"], tokens_per_second=speed)
            last = (step, training)
    return training


def _batches(loader: StepLoader, engine: Engine, step: int) -> list[MicroBatch]:
    """This rank's micro-batches of a step, in memory that a GPU, if there is one, copies from while it computes."""
    served = loader.micro_batches(step, rank=engine.data_rank, ranks=engine.data_ranks, size=engine.micro_batch)
    pinned = engine.world.device.type == "cuda"

    def tensor(part: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(part).pin_memory() if pinned else torch.from_numpy(part)

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


def _finish(
    spec: TrainSpec,
    engine: Engine,
    loader: StepLoader,
    validation: Validation,
    log: Log,
    begun: int,
    seconds: float,
) -> None:
    model = engine.whole_model()
    if model is None:
        return
    save(model, spec.out / "model", spec.tokenizer)
    write_samples(model, spec.config, spec.tokenizer, spec.out / "samples.md")
    (spec.out / "log.jsonl").write_bytes(spec.log.read_bytes())
    tokens = (spec.steps - begun) * spec.config.global_batch * spec.shape.context
    cuda = engine.world.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    last = [row["loss"] for row in log.rows[-max(1, min(20, spec.steps // 10)) :]]
    measured = {
        "windows": loader.samples.windows,
        "sources": loader.samples.report(spec.steps * spec.config.global_batch),
        "train_loss": sum(last) / len(last),
        "validation_loss": log.rows[-1]["validation_loss"],
        "validation_bits_per_byte": validation.bits_per_byte(log.rows[-1]["validation_loss"]),
        "facts": {
            "training_seconds": round(seconds, 2),
            "tokens_per_second": round(tokens / seconds, 1) if seconds else 0.0,
            "peak_memory_bytes": peak,
            "resumed_from_step": begun,
            "device": engine.world.device.type,
            "processes": engine.world.size,
            "micro_batch": engine.micro_batch,
        },
    }
    spec.result.write_text(json.dumps(measured))


if __name__ == "__main__":
    run_as_child(train)
