"""When training does not fit into a device: the cheapest changes of how it runs with which it does. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from models.memory import Setup, training_memory
from models.presets import ModelShape

MOST_DEVICES = 4096


def ways_to_fit(shape: ModelShape, setup: Setup, memory: int) -> Setup | None:
    """The first change of `setup` with which training needs no more than `memory` bytes a device; None without any.

    None of them changes the result. In order of what they cost: selective recomputation costs next to no time, full
    recomputation a third, smaller micro-batches some of the device's efficiency, shards their traffic, offloading far
    more; more devices cost money.
    """
    return next((other for other in _candidates(setup) if training_memory(shape, other).total <= memory), None)


def _candidates(setup: Setup) -> Iterator[Setup]:
    for base in _sharded(setup):
        for recompute in ("none", "selective", "full"):
            if ("none", "selective", "full").index(recompute) >= ("none", "selective", "full").index(base.recompute):
                yield replace(base, recompute=recompute)
        small = replace(base, recompute="full")
        while small.micro_batch > 1:
            small = replace(small, micro_batch=small.micro_batch // 2, micro_steps=small.micro_steps * 2)
            yield small
    if setup.engine == "deepspeed" and setup.cuda:
        yield replace(small, offload="optimizer")
    devices = setup.devices * 2
    while devices <= MOST_DEVICES:
        wide = replace(setup, devices=devices, recompute="full", micro_batch=1)
        yield replace(wide, zero_stage=3) if setup.engine == "deepspeed" else wide
        devices *= 2


def _sharded(setup: Setup) -> Iterator[Setup]:
    yield setup
    if setup.engine == "deepspeed" and setup.replicas > 1:
        for stage in range(setup.zero_stage + 1, 4):
            yield replace(setup, zero_stage=stage)


def changes(before: Setup, after: Setup) -> dict[str, Any]:
    """The fields in which two setups differ, with the new values; steps within a step follow and are left out."""
    names = [each.name for each in fields(Setup) if each.name != "micro_steps"]
    return {name: getattr(after, name) for name in names if getattr(after, name) != getattr(before, name)}
