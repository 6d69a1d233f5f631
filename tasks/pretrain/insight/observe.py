"""The interface of insight to the training loop, which calls it before and after each step and each kind of work.

Without `insight_every` and `profile_steps` a step costs two comparisons and a clock. Steps with them take longer but
give the same bits: hooks only read, and the extra forward pass draws nothing at random.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from models.presets import ModelShape, flops_per_token
from storage.errors import ConfigError
from tasks.children.child import emit
from tasks.pretrain.engines import Engine, MicroBatch
from tasks.pretrain.insight.layers import LayerStats, Stats, load_stats, merge
from tasks.pretrain.insight.probe import probe
from tasks.pretrain.insight.profiler import StepProfiler
from tasks.pretrain.insight.stragglers import Stragglers
from tasks.pretrain.spec import TrainSpec
from tasks.training.device_peak import data_sheet_flops, peak_flops, peak_memory
from tasks.training.logs import drop_torn, read_log
from tasks.training.tracking.trackers import Tracked, Tracker, by_step, open_tracker

KINDS = ("data", "training", "validation", "checkpoints", "logging", "insight")


class Insight:
    """One per rank, of which rank 0 writes. Every rank must call `before_step`, `after_step` and `lap` alike."""

    def __init__(self, spec: TrainSpec, engine: Engine, begun: int) -> None:
        """`begun` is the step that the run resumed from. Raises ConfigError for an engine without modules."""
        self.spec, self.engine, self.world, self.folder = spec, engine, engine.world, spec.insight
        self.flops = flops_per_token(spec.trained_shape)
        # The ranks measure at the same time, so cores and power that they share are shared as in training
        peak = torch.tensor(peak_flops(self.world.device, engine.dtype, torch.get_num_threads()), dtype=torch.float64)
        self.peak = float(self.world.sum(peak.to(self.world.device)))  # of all ranks together
        # With one unknown device the sum would be too small, and the utilisation too high: none is reported then
        sheets = self.world.gathered(data_sheet_flops(self.world.device, engine.precision))
        known = [flops for flops in sheets if flops is not None]
        self.data_sheet = sum(known) if len(known) == len(sheets) else None
        self.layers = LayerStats(_model(engine), _renaming(engine)) if spec.runtime.tracking.insight_every else None
        self.profiler = StepProfiler(self.folder, self.world.device)
        self.stragglers = Stragglers(self.world, cast(nn.ModuleList, _model(engine).blocks))
        self.inspects = self.traces = False
        self.tokens, self.reported = 0, begun
        self.waiting: list[dict[str, Any]] = []  # layer statistics not yet passed to trackers
        if self.world.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            drop_torn(self.folder / "speed.jsonl")
            _cut(self.folder / "insight.jsonl", begun)
            self._append("speed", self._circumstances(begun))
        self.trackers = open_trackers(spec, begun) if self.world.first else list[Tracker]()
        self.clock = Clock(self.world.device)

    def before_step(self, step: int, *, reported: bool) -> None:
        """Call before the batch of `step` is taken. `reported` says whether `report` follows this step."""
        runtime = self.spec.runtime
        self.stragglers.before_step(reported=reported)
        # All ranks inspect, as gathering and sharded norms need them. Only the first writes a trace
        self.inspects = runtime.tracking.insight_every is not None and step % runtime.tracking.insight_every == 0
        self.traces = step in runtime.tracking.profile_steps and self.world.first
        if self.layers and self.inspects:
            self.layers.start()
        if self.traces:
            self.profiler.start()
        if self.inspects or self.traces:
            self.clock.lap("insight")  # what preparing took is not the next batch's time

    def after_step(self, step: int, batches: Sequence[MicroBatch]) -> None:
        """Call after the optimizer's step. `batches` are this rank's."""
        self.stragglers.after_step()
        self.tokens += sum(ids_BT.numel() for ids_BT, _, _ in batches) * self.engine.data_ranks
        # Otherwise the GPU works on while Python goes ahead, and no step waits for it
        self.lap("training", wait=self.inspects or self.traces)
        if self.traces:
            self.profiler.stop(step)
        if self.layers and self.inspects:
            self._record_layers(step, batches[0], self.layers)
        if self.inspects or self.traces:
            self.clock.lap("insight")

    def lap(self, kind: str, *, wait: bool = False) -> None:
        """Count the time since the last lap as `kind` (see Clock)."""
        self.clock.lap(kind, wait=wait)

    def report(self, step: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Record the speed since the last report, also with the trackers. `rows` are the log's. Returns the figures of
        a progress line. Every rank must call it."""
        seconds = self.clock.take()
        slow, notes = self.stragglers.report(seconds["data"])
        for note in notes if self.world.reports else ():
            emit(note=note)
        speed = self.tokens / max(seconds["data"] + seconds["training"], 1e-9)
        measured = {
            "tokens_per_second": speed,
            "mfu_measured": speed * self.flops / self.peak,
            "mfu_data_sheet": None if self.data_sheet is None else speed * self.flops / self.data_sheet,
            "memory_bytes": peak_memory(self.world.device),
        }
        row = {"step": step, "steps": step - self.reported, "tokens": self.tokens, **measured}
        if self.world.first:
            self._append("speed", {**row, "seconds": {kind: round(spent, 6) for kind, spent in seconds.items()}})
            for host in slow:
                self._append("speed", {"step": step, **host})
        # Trackers take steps in ascending order only, so log, layers and speeds are merged by step first
        new = [row for row in rows[-(step - self.reported) :] if row["step"] > self.reported]
        speeds = {"step": step, **{f"speed/{name}": value for name, value in measured.items() if value is not None}}
        for number, values in by_step([*new, *map(flattened, self.waiting), speeds]) if self.trackers else ():
            for tracker in self.trackers:
                tracker.scalars(number, values)
        self.tokens, self.reported, self.waiting = 0, step, []
        validated = [row["validation_loss"] for row in new if "validation_loss" in row]
        waits_for = " and ".join(f"{row['slow_host']}, {row['factor']:.1f} times as slow" for row in slow)
        return {**measured, "waits_for": waits_for, **({"validation_loss": validated[-1]} if validated else {})}

    def close(self) -> None:
        """Flush and close the trackers."""
        for tracker in self.trackers:
            tracker.close()

    def _record_layers(self, step: int, batch: MicroBatch, layers: LayerStats) -> None:
        stats = layers.stop()
        logits: Stats = {}
        model, attentions = _model(self.engine), [name for name in layers.layers if name.endswith(".attention")]
        ours = isinstance(self.spec.shape, ModelShape)  # transformers may compute attention otherwise
        whole = ours and all(p.numel() for p in model.parameters()) and len(attentions) == self.spec.shape.depth
        if whole:  # a pipeline stage lacks layers, and under ZeRO 3 no rank has the weights
            with self.engine.autocast():
                # A head that is sharded by vocabulary computes only the loss
                in_parts = self.spec.runtime.pretrain.tensor_parallel > 1
                entropies, logits = probe(model, batch[0], batch[2], batch[1] if in_parts else None)
            for name, heads in zip(attentions, entropies, strict=True):
                stats[name] |= {"entropy": float(heads.mean()), "lowest_entropy": float(heads.min())}
        everywhere = self.world.gathered((stats, logits, layers.load()))
        if not self.world.first:
            return
        outputs = merge({"": logits} for _, logits, _ in everywhere).get("", {})
        row = {"step": step, **outputs, "layers": merge(of_rank for of_rank, _, _ in everywhere)}
        if routers := load_stats(load for _, _, load in everywhere):
            row["routers"] = routers
        self._append("insight", row)
        self.waiting += [row] if self.trackers else []

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        with (self.folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(_finite(row)) + "\n")

    def _circumstances(self, begun: int) -> dict[str, Any]:
        return {
            "begun": begun,
            "starting_seconds": round(seconds_since_start(), 3),
            "peak_flops": self.peak,
            "data_sheet_flops": self.data_sheet,
            "flops_per_token": self.flops,
            "precision": str(self.engine.dtype).removeprefix("torch."),
        }


class Clock:
    """Seconds of the training loop by kind of work, which add up to its whole time: each lap counts the time since the
    last one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self.last = time.perf_counter()

    def lap(self, kind: str, *, wait: bool = False) -> None:
        """Count the time since the last lap as `kind`. `wait` for the GPU first, or its work counts to the next lap."""
        if wait and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds[kind] += now - self.last
        self.last = now

    def take(self) -> dict[str, float]:
        """The seconds by kind since the last call."""
        taken, self.seconds = self.seconds, dict.fromkeys(KINDS, 0.0)
        return taken


def seconds_since_start() -> float:
    """Seconds since this process started, by the kernel's clock (Linux)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def flattened(row: Mapping[str, Any]) -> dict[str, float]:
    """A row of insight.jsonl with one level of names: `layers/blocks.0.attention/rms`. Without each expert's share."""
    flat = {name: value for name, value in row.items() if name not in ("layers", "routers")}
    for router, stats in row.get("routers", {}).items():
        flat |= {f"routers/{router}/{name}": value for name, value in stats.items() if name != "load"}
    for layer, stats in row["layers"].items():
        flat |= {f"layers/{layer}/{name}": value for name, value in stats.items()}
    return {name: value for name, value in flat.items() if value is not None}


def _model(engine: Engine) -> nn.Module:
    model = getattr(engine, "model", None)  # not part of the interface
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{type(engine).__name__} does not expose modules to record.",
            "Leave runtime.tracking.insight_every out, or choose another engine.",
        )
    return model


def _renaming(engine: Engine) -> Any:
    """The function from a module's name to that in the whole model. A pipeline stage counts its blocks from 0."""
    whole_name = getattr(engine, "whole_name", None)  # takes a parameter's name, so a module gets a part to have one
    return (lambda name: whole_name(f"{name}.part").removesuffix(".part")) if whole_name else str


def _cut(path: Path, step: int) -> None:
    """Remove rows after the checkpoint that the run resumes from."""
    if path.is_file():
        kept = [row for row in read_log(path) if row["step"] <= step]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in kept))


def _finite(value: Any) -> Any:
    """Numbers rounded to six digits. NaN and infinity become null, as JSON has neither."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def open_trackers(spec: TrainSpec, begun: int) -> list[Tracker]:
    """The trackers that the runtime names, each in its own folder beside the artifact."""
    tracking = spec.runtime.tracking
    config = {name: value for name, value in spec.config.model_dump(mode="json").items() if name != "model"}
    shape = {f"model.{name}": value for name, value in asdict(spec.shape).items() if name not in ("rules", "sizes")}
    settings = {**config, **shape, "steps": spec.steps}
    return [
        open_tracker(name, Tracked(spec.insight / name, settings, begun, tracking.wandb_online))
        for name in tracking.trackers
    ]
