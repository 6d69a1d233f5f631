"""Checks of the machine: memory of a step, disk space, threads, allocator, device, libraries."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import torch

from storage.units import size_of
from tasks.checks.check import Check, advice, verdict
from tasks.children.child import emit
from tasks.pretrain.checkpoints.disk import Room, rooms
from tasks.pretrain.engines import open_engine
from tasks.pretrain.preflight import MEMORY
from tasks.pretrain.preflight.bench import PARTS, Bench
from tasks.pretrain.recipe.micro_batch import rank_share
from tasks.pretrain.recipe.precision import has_bfloat16, precision
from tasks.stage import machine
from tasks.training.device_peak import peak_memory
from tasks.training.recovery.fault_injection import FaultInjection

FULL = 0.95  # share of the memory above which a run is at risk
LESS_MEMORY = (
    "Lower runtime.pretrain.micro_batch, set runtime.pretrain.recompute, or shard the model: "
    "runtime.pretrain.zero_stage, more processes."
)
ALLOCATOR = ("MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def disk(bench: Bench) -> Check:
    """Check the disk space for checkpoints, model and snapshots."""
    return judge_disk(rooms(bench.spec))


def judge_disk(systems: list[Room]) -> Check:
    """Judge each file system by itself."""
    short = [room for room in systems if not room.enough]
    return verdict(
        "disk",
        not short,
        "; ".join(str(room) for room in short or systems),
        "Free space (`gristmill store gc`), lower runtime.training.keep_checkpoints or raise pretrain.snapshot_every.",
    )


def memory(bench: Bench) -> Check:
    """Check the peak memory of two steps of the whole model at the run's micro-batch.

    Optimizer states exist from the first step on, and more than two micro-batches take no further memory. Reports the
    micro-batch, so that healing may lower it.
    """
    spec, world = bench.spec, bench.world
    data_ranks = bench.engine.data_ranks
    share = rank_share(spec.config, spec.runtime.pretrain, ranks=data_ranks, cuda=world.device.type == "cuda")
    size, steps = share.micro_batch, min(share.micro_steps, PARTS * world.size // data_ranks)
    whole = bench.shortened(spec, rows=size, batch=size * data_ranks * steps)
    bench.release()
    engine = open_engine(whole, world)
    if world.reports:
        emit(micro_batch=size, share=size * share.micro_steps)
    batches = bench.cut(engine, bench.open_loader(whole), spec.context)
    with FaultInjection(spec.faults, world.rank, world.device).at(0, 0.0) as rate:
        for _ in range(2):
            engine.step(batches, rate)
    resident = peak_memory() * spec.runtime.training.processes
    held = [(resident, machine.memory(), "this machine")]
    if world.device.type == "cuda":
        total = torch.cuda.get_device_properties(world.device).total_memory
        held.insert(0, (peak_memory(world.device), total, torch.cuda.get_device_name(world.device)))
    return judge_memory(held, size)


def judge_memory(held: Sequence[tuple[int, int, str]], rows: int) -> Check:
    """Judge the peak of a step against the capacity, in bytes, of each memory: the device's and the host's."""
    peaks = " and ".join(f"{size_of(peak)} of {size_of(total)} of {where}" for peak, total, where in held)
    fits = all(peak <= FULL * total for peak, total, _ in held)
    return verdict(MEMORY, fits, f"{peaks}, with micro-batches of {rows}", LESS_MEMORY)


def threads(bench: Bench) -> Check:
    """Check the number of threads against the cores."""
    runtime = bench.spec.runtime
    return judge_threads(runtime.rank_threads, runtime.training.processes, machine.cores())


def judge_threads(each: int, processes: int, cores: int) -> Check:
    """Advise against more threads than cores, which slow each other down."""
    return advice(
        "threads",
        each * processes <= cores,
        f"{processes} × {each} on {cores} cores",
        "More threads than cores slow training down several times: set "
        f"runtime.compute.threads={max(1, cores // processes)}.",
    )


def allocator(bench: Bench) -> Check:
    """Check that the allocator keeps the memory of freed tensors."""
    return judge_allocator(os.environ)


def judge_allocator(environment: Mapping[str, str]) -> Check:
    """Judge the allocator: glibc must be tuned to keep memory, or another allocator preloaded."""
    other = [name for name in ("tcmalloc", "jemalloc") if name in environment.get("LD_PRELOAD", "")]
    missing = [name for name in ALLOCATOR if name not in environment]
    return advice(
        "allocator",
        bool(other) or not missing,
        other[0] if other else f"{', '.join(missing)} not set" if missing else "keeps what tensors free",
        "Start training through the pipeline, which sets these variables: small models train a third faster.",
    )


def device(bench: Bench) -> Check:
    """Check that the device supports the precision."""
    world, spec = bench.world, bench.spec
    cuda = world.device.type == "cuda"
    name = torch.cuda.get_device_name(world.device) if cuda else "CPU"
    bf16 = has_bfloat16() if cuda else torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return judge_device(name, precision(spec, world), cuda=cuda, bf16=bf16, compiled=spec.runtime.pretrain.compiles)


def judge_device(name: str, chosen: str, *, cuda: bool, bf16: bool, compiled: bool) -> Check:
    """Judge whether the device supports the precision in hardware, and whether float8 runs compiled."""
    value = f"{name}, trains in {chosen}, bfloat16 {'in hardware' if bf16 else 'not in hardware'}"
    if chosen == "float8" and not compiled:
        remedy = "float8 without torch.compile is slower than bfloat16: set runtime.pretrain.compile=default."
        return advice("device", False, value, remedy)
    slow = not bf16 and chosen in (("bfloat16",) if cuda else ("bfloat16", "float16"))
    return advice("device", not slow, value, f"{chosen} is many times slower here: pretrain.precision=float32.")


def libraries(bench: Bench) -> Check:
    """Check that the engine's library is installed."""
    engine = bench.spec.runtime.pretrain.engine
    needed = ["torch", *(["deepspeed"] if engine == "deepspeed" else [])]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    value = ", ".join(f"{name} {version(name)}" for name in needed if name not in missing)
    return verdict(
        "libraries",
        not missing,
        f"{', '.join(missing)} can't be imported" if missing else f"engine {engine}: {value}",
        f"Install it (`{sys.executable} -m pip install {' '.join(missing)}`), or choose runtime.pretrain.engine=ddp.",
    )
