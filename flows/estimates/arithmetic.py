"""Estimates of a profile's pretraining: memory, disk, time and cost, by the formulas in `models/`."""

from __future__ import annotations

import timeit
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from models.activations import skips_hidden
from models.compute import Bill, bill, executed_flops_per_token
from models.devices import DEVICES, Device, Products, UnknownDevice, find_device
from models.fit import changes, engines, ways_to_fit
from models.memory import (
    Ends,
    Setup,
    TrainingMemory,
    checkpoint_bytes,
    checkpoint_disk,
    memory_of_ends,
    most_memory,
    training_memory,
)
from models.presets import ForeignShape, ModelShape, Shape, ShapeError, count_parameters, derive, flops_per_token
from profiles.schema import Profile
from storage.errors import ConfigError
from storage.store import Store
from tasks.base.source import described_folder, known_config, shape_of_config, unreadable
from tasks.pretrain import PretrainConfig
from tasks.pretrain.base import shape_of_base
from tasks.pretrain.check import check_computed_by_transformers
from tasks.pretrain.long_context.extend import extended
from tasks.pretrain.recipe.compiling import compiling
from tasks.pretrain.setup import setup_of, trained_share
from tasks.stage import machine
from tasks.stage.runtime import Runtime
from tasks.stage.session import Session, current, open_session
from tasks.training.device_peak import cpu_peak_flops
from tasks.training.retention import most_kept

USUAL_GPU = "h100"  # for a profile that doesn't name a type
PRODUCT, PRODUCTS = 1024, 5  # the size of a matrix, and how often it is multiplied
CPU_UTILISATION = 0.5  # of the measured peak, for models of a few million parameters


@dataclass(frozen=True)
class TrainingPlan:
    """The pretraining of a profile on a kind of device."""

    shape: Shape
    tokens: int
    steps: int
    batch: int  # sequences per step after warmup
    setup: Setup
    device: Device
    products: Products
    memory: TrainingMemory
    ends: Ends
    ranks: int  # on a host
    checkpoint: int  # bytes
    kept: int  # checkpoints, a branch among them
    bill: Bill
    busy: float  # devices at work at once: processes on a CPU share its cores
    is_new: bool = True  # not a base that is trained on
    hostfile: str | None = None  # the profile names it but it is missing here: one host is assumed
    given_price: bool = False  # by the user, not from the table
    given_share: bool = False  # utilisation, likewise
    measured: bool = False  # the time is the stage's, not from the device's assumed utilisation
    compiling: str = ""  # what `compile: auto` decides, and why

    @property
    def parameters(self) -> int:
        """Parameters of the model. A tied matrix counts once."""
        return count_parameters(self.shape)

    def with_time(self, seconds: float) -> TrainingPlan:
        """The same plan on a CPU that takes this many seconds."""
        hours = seconds / 3600
        peak = (self.device.peak(self.products) or 0.0) * self.busy
        reached = self.executed_flops / (seconds * peak) if seconds and peak else self.device.utilisation
        price = self.device.price
        cost = Bill(hours, hours * self.busy, None if price is None else hours * self.busy * price)
        return replace(self, bill=cost, device=replace(self.device, utilisation=reached), measured=True)

    @property
    def flops(self) -> int:
        """Model FLOPs: forward and backward, without recomputation."""
        return flops_per_token(self.shape) * self.tokens

    @property
    def executed_flops(self) -> int:
        """Hardware FLOPs: with recomputation, and with what attention computes but masks."""
        return _executed(self.shape, self.setup, self.tokens)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation at the assumed share of the peak, less recomputation's part."""
        return self.device.utilisation * self.flops / self.executed_flops

    @property
    def computes_hidden(self) -> bool:
        """Whether attention computes what a sliding window masks."""
        if isinstance(self.shape, ForeignShape):
            return False  # their FLOPs are counted without attention
        return self.shape.windowed > 0 and not skips_hidden(self.shape, self.setup.form)

    @property
    def disk(self) -> int:
        """Peak bytes of all checkpoints."""
        return checkpoint_disk(self.checkpoint, self.kept)

    @property
    def fits(self) -> bool:
        """Whether the whole run fits in a device's memory."""
        return self.most <= self.device.memory

    @property
    def most(self) -> int:
        """Peak bytes on a device."""
        return most_memory(self.shape, self.setup)

    def by_engine(self) -> list[tuple[Setup, int]]:
        """Peak bytes per device with each engine and ZeRO stage."""
        return [(setup, most_memory(self.shape, setup)) for setup in engines(self.setup)]

    def remedy(self) -> dict[str, object] | None:
        """The cheapest changes of settings that make it fit, or None if nothing does."""
        fitting = ways_to_fit(self.shape, self.setup, self.device.memory)
        return None if fitting is None else changes(self.setup, fitting)


@dataclass(frozen=True)
class TrainingWork:
    """The pretraining of a profile, whatever the device."""

    flops: int  # executed
    steps: int
    parameters: int
    context: int  # tokens
    devices: int
    products: Products


def shape_to_train(profile: Profile) -> Shape | None:
    """The shape that a profile pretrains, with the context of its training sequences. None for a profile that doesn't
    pretrain, and for a base that isn't on this machine. If its files are here, settings that don't suit it are refused
    with a ConfigError, as by the run."""
    config = profile.pretrain
    if config is None:
        return None
    if config.model is not None:
        return derive(config.new_model, profile.tokenizer.vocab_size)
    assert profile.base is not None
    with nullcontext() if profile.base.artifact is None or current() else _session(profile):
        theirs = known_config(profile.base)
        shape = _shape_of_base(theirs, config)
        if shape is None:
            return None
        with suppress(*unreadable()), described_folder(profile.base, theirs) as folder:
            shape_of_base(folder, config, profile.runtime.pretrain)
    if isinstance(shape, ForeignShape):
        return replace(shape, context=config.context or shape.context)
    longer = extended(shape, config)
    assert isinstance(longer, ModelShape)
    shape = longer
    rules = {**dict.fromkeys((one.name for one in fields(shape)), "the base's"), "context": "of training"}
    rows = shape.vocab_size + (profile.tokenizer.extend or 0)  # at most: a padded matrix has rows for new tokens
    if profile.tokenizer.extend:
        rules["vocab_size"] = f"the base's {shape.vocab_size:,} and new tokens"
    return replace(shape, context=config.context or shape.context, vocab_size=rows, rules=rules)


def _shape_of_base(theirs: Any, config: PretrainConfig) -> Shape | None:
    adapt = mark = None
    if not config.trains_all:
        from tasks.pretrain.engines.initialise import adapt_with
        from tasks.pretrain.engines.trained import mark_trained

        adapt, mark = adapt_with(config.adapter), partial(mark_trained, config=config)
    with suppress(*unreadable()):
        return None if theirs is None else shape_of_config(theirs, adapt, mark)
    return None


def _session(profile: Profile) -> AbstractContextManager[Session]:
    return open_session(Session(Store(profile.runtime.store), profile.runtime, profile.name))


def training_work(profile: Profile, *, cuda: bool, shape: Shape | None = None) -> TrainingWork | None:
    """The work of a profile's pretraining. None if it doesn't pretrain, or a base whose shape isn't known. `shape` is
    that of `shape_to_train`, if the caller has it."""
    config, shape = profile.pretrain, shape or shape_to_train(profile)
    if config is None or shape is None:
        return None
    steps, setup = config.total_steps(shape), setup_of(config, profile.runtime, cuda=cuda)
    flops = _executed(shape, setup, config.samples(steps) * shape.context)
    return TrainingWork(flops, steps, count_parameters(shape), shape.context, setup.devices, _products(setup, config))


def gpu_of(runtime: Runtime, name: str | None = None) -> Device | None:
    """The GPU to train on: `name`, by default the runtime's, or None for a CPU. Raises ConfigError if it is unknown."""
    if name is None:
        wanted = runtime.compute.device == "cuda" or (runtime.compute.device == "auto" and _has_gpu())
        name = USUAL_GPU if wanted else "cpu"
    return None if name.lower() == "cpu" else _known_device(name.lower())


def training_plan(
    profile: Profile,
    device: str | None = None,
    price: float | None = None,
    utilisation: float | None = None,
    shape: Shape | None = None,
) -> TrainingPlan:
    """The estimates for a profile on `device`. By default the runtime's: this CPU, measured, or an H100.
    `shape` is that of `shape_to_train`, if the caller has it.

    Raises ConfigError for a profile without a known shape to pretrain, an unknown device, and devices or batches that
    the runtime's settings don't divide.
    """
    config, shape = profile.pretrain, shape or shape_to_train(profile)
    if config is None or shape is None:
        raise ConfigError(
            f"The profile {profile.name} doesn't pretrain, or a base whose shape isn't known here.",
            "Name a profile with `pretrain`, such as tiny.",
        )
    chosen = _device(profile.runtime, device)
    chosen = replace(
        chosen,
        price=chosen.price if price is None else price,
        utilisation=chosen.utilisation if utilisation is None else utilisation,
    )
    if config.precision == "float8" and not chosen.float8:
        raise ConfigError(
            f"pretrain.precision is float8, but {chosen.title} can't multiply in it.",
            f"Choose bfloat16, or one of {', '.join(device.name for device in DEVICES.values() if device.float8)}.",
        )
    if isinstance(shape, ForeignShape) and config.adapter is None:
        check_computed_by_transformers(shape.family, config, profile.runtime.pretrain)
    steps = config.total_steps(shape)
    tokens = config.samples(steps) * shape.context
    setup = setup_of(config, profile.runtime, cuda=chosen.name != "cpu")
    setup, why = replace(setup, trained=trained_share(config, shape)), ""
    if profile.runtime.pretrain.compile == "auto" and not setup.cuda:
        pays, why = compiling(config, shape, steps, profile.runtime, cuda=False)
        setup = replace(setup, compiled=pays)
    try:
        memory = training_memory(shape, setup)
    except ShapeError as error:
        raise ConfigError(f"The runtime can't divide its devices: {error}.", "Change runtime.pretrain.") from error
    runtime, hosts = profile.runtime, profile.runtime.training.hostfile
    busy = setup.devices * _share_of_cores(runtime) if chosen.name == "cpu" else setup.devices
    return TrainingPlan(
        shape=shape,
        tokens=tokens,
        steps=steps,
        batch=config.global_batch,
        setup=setup,
        device=chosen,
        products=_products(setup, config),
        memory=memory,
        ends=memory_of_ends(shape, setup),
        ranks=profile.runtime.training.processes,
        checkpoint=checkpoint_bytes(shape, setup),
        kept=most_kept(
            steps,
            newest=runtime.training.keep_checkpoints,
            every=runtime.pretrain.keep_every,
            apart=runtime.training.checkpoint_every,
        )
        + runtime.pretrain.branches,
        bill=bill(_executed(shape, setup, tokens), chosen, devices=busy, products=_products(setup, config)),
        busy=busy,
        is_new=config.model is not None,
        given_price=price is not None,
        given_share=utilisation is not None,
        hostfile=hosts if hosts is not None and not Path(hosts).exists() else None,
        compiling=why,
    )


def _products(setup: Setup, config: PretrainConfig) -> Products:
    """The precision of matrix products."""
    if setup.precision != "float32":
        return "half"
    return "tf32" if config.precision == "tf32" else "float32"


def pretraining_of(profile: Profile) -> PretrainConfig:
    """The config of a new model's pretraining. Raises ConfigError for a profile that starts from a base."""
    if profile.pretrain is None or profile.pretrain.model is None:
        raise ConfigError(
            f"The profile {profile.name} starts from a base model and doesn't pretrain a new one.",
            "Name a profile with `pretrain.model`, such as tiny.",
        )
    return profile.pretrain


def _executed(shape: Shape, setup: Setup, tokens: int) -> int:
    skips = isinstance(shape, ModelShape) and skips_hidden(shape, setup.form)
    return executed_flops_per_token(shape, recompute=setup.recompute, skips_hidden=skips) * tokens


def _device(runtime: Runtime, name: str | None) -> Device:
    if gpu := gpu_of(runtime, name):
        return gpu
    memory = machine.memory() // runtime.training.processes
    peak = cpu_peak_flops(runtime.rank_threads) if find_spec("torch") else _peak_without_torch()
    return Device("cpu", f"this CPU, {runtime.rank_threads} threads", memory, None, None, peak, None, CPU_UTILISATION)


def _known_device(name: str) -> Device:
    try:
        return find_device(name)
    except UnknownDevice as error:
        raise ConfigError(f"Device {name} is unknown.", f"Choose one of cpu, {', '.join(DEVICES)}.") from error


def _share_of_cores(runtime: Runtime) -> float:
    """The speed of a process as a share of its speed without the host's other processes, which compete for cores."""
    cores, processes = machine.cores(), runtime.training.processes
    undisturbed = min(runtime.rank_threads, cores)
    return min(1.0, cores / (undisturbed * processes))


def _peak_without_torch() -> float:
    """FLOP/s of this CPU's float32 matrix products, by NumPy with the threads of its library: for a plan where nothing
    trains."""
    matrix = np.ones((PRODUCT, PRODUCT), np.float32)
    best = min(timeit.repeat(lambda: matrix @ matrix, number=1, repeat=PRODUCTS))
    return float(2 * PRODUCT**3 / best)


def _has_gpu() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()
