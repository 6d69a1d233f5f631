"""What training changes of a base on held-out text, by source: a gain on the domain, a loss on general text.

The same windows are measured before the first step and after the last, each by itself, so that neither the number of
processes nor the micro-batch matters.

A base that got new tokens is measured before it had them: in its own tokens, and without the new ones among those that
it chooses from. Each window is then the same text in more tokens, and is cut off, before and after, where its own
tokens fill the context.
"""

from __future__ import annotations

import gc
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.kernels.attention import for_any_shape
from models.kernels.cross_entropy import IGNORED
from models.tokenizer import new_tokens
from storage.shards.token_stream import Stretches, source_streams
from tasks.children.child import emit
from tasks.pretrain.base import shape_of_base
from tasks.pretrain.engines import Engine, open_engine
from tasks.pretrain.evaluation import Rows, bucket_sums
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World
from tasks.training.bits_per_byte import read_windows, spread_windows

Losses = dict[str, list[list[float]]]  # nats and tokens of each window, by source
Pieces = Mapping[int, Sequence[int]]  # the base's ids that a new id joins


class Change(ABC):
    """A measurement before the first step, kept in a file for a run that resumes, and again after the last."""

    def __init__(self, before: Path) -> None:
        self._before = before

    @abstractmethod
    def measured(self, engine: Engine, heartbeat: Callable[[], None]) -> dict[str, Any]:
        """What is measured, as JSON values. Every rank must call it."""

    def begin(self, engine: Engine, begun: int, heartbeat: Callable[[], None]) -> None:
        """Measure the base, unless the run resumes from a step. Every rank must call it."""
        if begun:
            return
        self.write(self.measured(engine, heartbeat), engine.world)

    def write(self, measured: dict[str, Any], world: World) -> None:
        """Keep what was measured before."""
        if world.first:
            draft = self._before.with_suffix(".draft")
            draft.write_text(json.dumps(measured))
            draft.replace(self._before)

    def end(self, engine: Engine, heartbeat: Callable[[], None]) -> dict[str, dict[str, Any]]:
        """The values before and after, by name. Every rank must call it."""
        after = self.measured(engine, heartbeat)
        before = json.loads(self._before.read_bytes()) if self._before.exists() else {}
        return {name: {"before": before[name], "after": after[name]} for name in after if name in before}


class HeldOutChange(Change):
    """The losses of the held-out windows of each source, `validation_tokens` of each."""

    def __init__(self, spec: TrainSpec, world: World) -> None:
        super().__init__(spec.scratch / "held-out-before.json")
        self._spec, self._world = spec, world
        self._streams = source_streams(spec.validation, tokenizer_digest=spec.tokenizer_digest)
        self._pieces: Pieces = new_tokens(spec.extends, spec.tokenizer) if spec.extends else {}

    def measure_own(self, heartbeat: Callable[[], None]) -> None:
        """Measure the base as it was before it got new tokens, if it did, by an engine of its own. Every rank must call
        it, before the run's engine takes memory."""
        spec, world = self._spec, self._world
        missing = torch.tensor(float(not self._before.exists()), device=world.device)
        if spec.extends is None or not world.sum(missing).item():
            return
        if world.reports:
            emit(note="measuring the base on held-out text")
        shape = shape_of_base(spec.extends, spec.config, spec.runtime.pretrain)
        engine = open_engine(spec.model_copy(update={"base": spec.extends, "shape": shape}), world)
        self.write(self._measured(engine, heartbeat, own=True), world)
        del engine
        gc.collect()  # its hooks refer to it
        if world.device.type == "cuda":
            torch.cuda.empty_cache()

    def begin(self, engine: Engine, begun: int, heartbeat: Callable[[], None]) -> None:
        """Measure the base, unless the run resumes from a step or `measure_own` did. Every rank must call it."""
        if self._spec.extends is None:
            super().begin(engine, begun, heartbeat)

    def measured(self, engine: Engine, heartbeat: Callable[[], None]) -> Losses:
        return self._measured(engine, heartbeat, own=False)

    @for_any_shape()  # as `Validation.loss`
    def _measured(self, engine: Engine, heartbeat: Callable[[], None], *, own: bool) -> Losses:
        context = self._spec.context
        sums = {
            name: bucket_sums(engine, self._rows(stream, own), [0, context], heartbeat)[:, 0]
            for name, stream in self._streams.items()
        }
        return {name: sums_N3[:, [0, 2]].tolist() for name, sums_N3 in sums.items()}

    def _rows(self, stream: Stretches, own: bool) -> Rows:
        """The windows as they are, or if the base got new tokens, in its own ones or as much of theirs."""
        context = self._spec.context
        windows = spread_windows(stream, context, self._spec.config.validation_tokens)
        ids_NT, targets_NT = read_windows(stream, windows, context, len(windows))
        if self._pieces:
            rows = [same_text(*row, self._pieces) for row in zip(ids_NT, targets_NT, strict=True)]
            first = 0 if own else 2
            ids_NT, targets_NT = (torch.stack([row[first + part] for row in rows]) for part in (0, 1))
        return Rows(ids_NT.numpy(), targets_NT.numpy())


def same_text(ids_T: Tensor, targets_T: Tensor, pieces: Pieces) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids and targets of a window in the base's tokens, then in its own, both with targets up to the same character: as
    many of its tokens as the base needs no more than T + 1 for, the first included."""
    length = len(ids_T)
    kept = targets_T != IGNORED
    whole = [*ids_T.tolist(), int(targets_T[-1]) if kept[-1] else 0]
    bears_loss = [False, *kept.tolist()]
    own: list[int] = []
    targets: list[int] = []
    taken = 0
    for id, counts in zip(whole, bears_loss, strict=True):
        parts = pieces.get(id, (id,))
        if len(own) + len(parts) > length + 1:
            break
        own += parts
        targets += parts if counts else [IGNORED] * len(parts)
        taken += 1
    rest = length + 1 - len(own)
    own_ids, own_targets = [*own, *[0] * rest][:-1], [*targets, *[IGNORED] * rest][1:]
    cut_T = targets_T.clone()
    cut_T[max(0, taken - 1) :] = IGNORED
    return torch.tensor(own_ids), torch.tensor(own_targets), ids_T, cut_T
