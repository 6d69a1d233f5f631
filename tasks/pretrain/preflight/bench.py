"""A small version of the run, which the checks share.

It has the profile's width, vocabulary, optimizer, engine and processes, but short rows, two micro-batches of two rows
per process, and fewer layers for a large model: a fault in one layer is a fault in thirty.
"""

from __future__ import annotations

import functools
import gc
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from models.presets import count_parameters
from models.transformer import Transformer
from tasks.pretrain.engines import Engine, MicroBatch, open_engine
from tasks.pretrain.loader import StepLoader, open_loader
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World

ROW = 64  # tokens of a row, or the context if it is shorter
ROWS, PARTS = 2, 2  # rows of a micro-batch, micro-batches of a step
CPU_PARAMETERS, GPU_PARAMETERS = 10_000_000, 500_000_000  # most of the small run, if leaving out layers suffices


class Bench:
    """The small run's parts, created on first use. All ranks must use them in the same order."""

    def __init__(self, spec: TrainSpec, world: World) -> None:
        self.spec, self.world = spec, world

    @functools.cached_property
    def small(self) -> TrainSpec:
        """The spec of the small run."""
        most = GPU_PARAMETERS if self.world.device.type == "cuda" else CPU_PARAMETERS
        shape = self.spec.shape
        while count_parameters(shape) > most and shape.depth > 2:
            shape = replace(shape, depth=max(2, shape.depth // 2))
        fewer = self.spec.model_copy(update={"shape": shape})
        return self.shortened(fewer, rows=ROWS, batch=ROWS * PARTS * self.world.size)

    def shortened(self, spec: TrainSpec, *, rows: int, batch: int) -> TrainSpec:
        """The spec with micro-batches of `rows` and this global batch, without warmups of batch and context, and with
        nothing compiled that only a whole training repays."""
        whole = {"global_batch": batch, "context_warmup_steps": 0, "batch_warmup_steps": 0}
        config = spec.config.model_copy(update=whole)
        compiled = "off" if spec.runtime.pretrain.compile == "auto" else spec.runtime.pretrain.compile
        runtime = spec.runtime.with_changes("pretrain", micro_batch=rows, compile=compiled)
        return spec.model_copy(update={"config": config, "runtime": runtime})

    @property
    def depth(self) -> str:
        """A remark on the depth of the small run, if it differs."""
        small, whole = self.small.shape.depth, self.spec.shape.depth
        return "" if small == whole else f", {small} of {whole} layers"

    @functools.cached_property
    def loader(self) -> StepLoader:
        """The run's data, in steps of the small run."""
        return self.open_loader(self.small)

    def open_loader(self, spec: TrainSpec) -> StepLoader:
        """A loader of the run's data."""
        return open_loader(
            spec.train,
            spec.config,
            context=spec.context,
            tokenizer_digest=spec.tokenizer_digest,
            fim_tokens=spec.fim_tokens,
        )

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine of the small run, which a check may change for the next ones."""
        return open_engine(self.small, self.world)

    @functools.cached_property
    def batches(self) -> list[MicroBatch]:
        """The first step of the small run, cut to short rows, on the device."""
        return self.cut(self.engine, self.loader)

    def cut(self, engine: Engine, loader: StepLoader, tokens: int = ROW) -> list[MicroBatch]:
        """This rank's share of a loader's first step, with rows cut to `tokens`, on the device."""
        served = loader.micro_batches(1, rank=engine.data_rank, ranks=engine.data_ranks, size=engine.micro_batch)

        def moved(part: Any) -> Tensor:
            return torch.from_numpy(part[:, :tokens].copy()).to(self.world.device)

        return [
            (moved(ids), moved(targets), None if positions is None else moved(positions))
            for ids, targets, positions in served
        ]

    def release(self) -> None:
        """Free the small run, so that the memory of the whole one can be measured."""
        for name in ("engine", "model", "batches"):
            vars(self).pop(name, None)
        gc.collect()
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    @functools.cached_property
    def model(self) -> Transformer:
        """The small model outside an engine, in float32 on the device."""
        return cast(Transformer, self.engine.new_model().to(self.world.device))
