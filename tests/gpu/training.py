"""A model small enough to train on a CPU in float64, as a reference that engines are compared with."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from models.presets import ModelShape
from models.transformer import Transformer
from tasks.pretrain import PretrainConfig
from tasks.pretrain.engines import Engine, MicroBatch, open_engine
from tasks.pretrain.loader.batch import Batch
from tasks.pretrain.recipe.optimizers import new_optimizer, set_learning_rate
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World
from tests.runtimes import runtime_of
from tests.tasks.pretrain.one_process import micro_batches, rows, spec_of

MODEL = {"depth": 2, "width": 128, "heads": 4, "kv_heads": 2, "feed_forward": 256, "context": 64}
RATE, ROWS = 0.001, 4


def spec_on(device: str, *, runtime: dict[str, Any] | None = None, **config: Any) -> TrainSpec:
    """A spec of this model, in micro-batches of half the rows."""
    found = spec_of(device=device, micro_batch=ROWS // 2, model={**MODEL, **config.pop("model", {})}, **config)
    return found.model_copy(update={"runtime": runtime_of(found.runtime, **(runtime or {}))})


def batch_of(step: int, *, tokens: int, isolated: bool = False) -> Batch:
    """The rows of a step."""
    return rows(step, size=ROWS, tokens=tokens, isolated=isolated)


def on(device: torch.device, batches: list[MicroBatch]) -> list[MicroBatch]:
    """Micro-batches on a device."""
    return [
        (ids.to(device), targets.to(device), None if positions is None else positions.to(device))
        for ids, targets, positions in batches
    ]


def train(engine: Engine, steps: range, *, isolated: bool = False) -> list[float]:
    """The losses of some steps."""
    device, losses = engine.world.device, []
    for step in steps:
        batch = batch_of(step, tokens=engine.spec.shape.context, isolated=isolated)
        batches = micro_batches(batch, ROWS // 2)
        losses.append(float(engine.step(on(device, batches), RATE)[0]))
    return losses


def learned(spec: TrainSpec, world: World, steps: int, *, isolated: bool = False) -> list[float]:
    """The losses of the spec's engine in its first steps."""
    return train(open_engine(spec, world), range(1, steps + 1), isolated=isolated)


def expected(spec: TrainSpec, steps: int, *, isolated: bool = False) -> list[float]:
    """The losses of plain torch on a CPU in float64, a whole batch at a time, without an engine."""
    alike = spec.config.model_copy(update={"precision": "float32"})
    return list(_expected(alike.model_dump_json(), spec.shape, steps, isolated))


@functools.cache
def _expected(config: str, shape: ModelShape, steps: int, isolated: bool) -> list[float]:
    chosen = PretrainConfig.model_validate_json(config)
    torch.manual_seed(chosen.seed)
    model = Transformer(shape)
    model.double()
    optimizer = new_optimizer(chosen, model)
    losses = []
    for step in range(1, steps + 1):
        set_learning_rate(optimizer.param_groups, RATE)
        loss = whole_loss(model, batch_of(step, tokens=shape.context, isolated=isolated))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), chosen.gradient_clip)
        optimizer.step()
        losses.append(float(loss))
    return losses


def whole_loss(model: Transformer, batch: Batch) -> Tensor:
    """The mean loss over a batch, by torch's own cross-entropy."""
    tensors = [None if part is None else torch.from_numpy(part) for part in batch]
    ids, targets, positions = tensors
    assert ids is not None
    assert targets is not None
    logits = model(ids, None, positions)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def weights_of(engine: Engine) -> Tensor:
    """All weights in a row, on the CPU."""
    whole = engine.whole_model()
    assert whole is not None
    return torch.cat([parameter.detach().flatten() for parameter in whole.parameters()])
