"""The cheapest changes of settings with which a training run fits into memory. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from models.memory import Engine, Setup, most_memory
from models.presets import Recompute, Shape

MOST_DEVICES = 4096
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


def ways_to_fit(shape: Shape, setup: Setup, memory: int) -> Setup | None:
    """The first change of `setup` with which a run needs at most `memory` bytes per device, from its start to its end.
    None if no change suffices.

    The changes keep the result, and engines support all of them. They are tried in order of cost: selective
    recomputation takes hardly any time, full recomputation a third, smaller micro-batches some efficiency, sharding
    communication, and offloading far more. More devices cost money.
    """
    return next((other for other in _candidates(setup) if most_memory(shape, other) <= memory), None)


def _candidates(setup: Setup) -> Iterator[Setup]:
    least = setup
    for base in _sharded(setup):
        for recompute in RECOMPUTE[RECOMPUTE.index(base.recompute) :]:
            yield replace(base, recompute=recompute)
        least = replace(base, recompute="full")
        while least.micro_batch > 1:
            least = replace(least, micro_batch=least.micro_batch // 2, micro_steps=least.micro_steps * 2)
            yield least
    if least.engine == _shards(least) and least.cuda:
        for stage in range(max(2, least.zero_stage), 4):  # at 1 all gradients stay on the device
            yield replace(least, zero_stage=stage, offload="optimizer")
    engine = _shards(setup)
    if engine is not None:
        devices = setup.devices * 2
        while devices <= MOST_DEVICES:
            yield replace(setup, engine=engine, zero_stage=3, devices=devices, recompute="full", micro_batch=1)
            devices *= 2


def _sharded(setup: Setup) -> Iterator[Setup]:
    """The setup, and those that shard more over the same devices."""
    yield setup
    engine = _shards(setup)
    if engine is None or setup.replicas == 1:
        return
    stages = range(setup.zero_stage + 1, 4) if engine == "deepspeed" else [3]
    for stage in stages:
        if (engine, stage) != (setup.engine, setup.zero_stage):
            yield replace(setup, engine=engine, zero_stage=stage)


def _shards(setup: Setup) -> Engine | None:
    """The engine that can shard this setup. DDP can't, FSDP does not support everything that DDP does, and ZeRO does
    not support Muon."""
    if setup.engine == "fsdp" or (setup.engine == "deepspeed" and setup.optimizer == "adamw"):
        return setup.engine
    return "fsdp" if setup.pipeline_parallel == 1 and setup.cuda else None


def engines(setup: Setup) -> list[Setup]:
    """`setup` with each engine and ZeRO stage that supports it, to compare their memory."""
    shared = setup.tensor_parallel * setup.pipeline_parallel > 1
    setups = [replace(setup, engine="ddp", zero_stage=0, offload="none")]
    if not shared:
        sharded = range(4) if setup.optimizer == "adamw" else range(1)
        stages = (replace(setup, engine="deepspeed", zero_stage=stage) for stage in sharded)
        setups += [replace(each, offload=each.offload if each.zero_stage else "none") for each in stages]
    if setup.pipeline_parallel == 1:
        setups += [replace(setup, engine="fsdp", zero_stage=stage) for stage in (0, 3)]
    return setups


def changes(before: Setup, after: Setup) -> dict[str, Any]:
    """The fields in which two setups differ, with the new values, except `micro_steps`, which follows."""
    names = [each.name for each in fields(Setup) if each.name != "micro_steps"]
    return {name: getattr(after, name) for name in names if getattr(after, name) != getattr(before, name)}
