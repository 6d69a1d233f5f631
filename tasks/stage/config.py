"""The two halves of a profile, as types.

`StageConfig` is the base of every stage's config: its fields bear identity. `Runtime` is how a run is carried out;
nothing in it may change a result, and it never enters a key. A choice belongs to exactly one of them.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field


class StageConfig(BaseModel):
    """Choices that change a stage's result. Frozen, unknown keys refused, every field described."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Runtime(BaseModel):
    """How to run: never part of a key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: str = Field("store", description="where artifacts live: a folder, or an fsspec URL such as s3://bucket/path")
    workers: int = Field(
        default_factory=lambda: os.cpu_count() or 1, ge=1, description="worker processes for the data stages"
    )
    threads: int = Field(
        default_factory=lambda: os.cpu_count() or 1,
        ge=1,
        description="CPU threads of a training process; sums are rounded differently with another number",
    )
    memory_limit: ByteSize | None = Field(
        None, description="memory for a data stage's tables, such as 8GB; beyond it they are split and kept on disk"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where models run; auto takes a GPU if there is one"
    )
    processes: int = Field(1, ge=1, description="training processes on each host; one a GPU")
    launcher: Literal["auto", "deepspeed", "torchrun"] = Field(
        "auto", description="what starts training processes: auto is DeepSpeed's runner for a hostfile, else torchrun"
    )
    hostfile: str | None = Field(None, description="DeepSpeed hostfile for training on many hosts")
    rendezvous: str | None = Field(
        None, pattern=r"^[^\s:]+:\d+$", description="host:port of one host, at which the others join a training"
    )
    hosts: int = Field(1, ge=1, description="hosts that meet at the rendezvous; under Slurm they are the allocation's")
    micro_batch: int | None = Field(
        None, ge=1, description="sequences a forward pass; the global batch stays as the profile says"
    )
    engine: Literal["deepspeed", "ddp", "fsdp"] = Field(
        "deepspeed",
        description="what spreads pretraining over processes: DeepSpeed's ZeRO, or torch's DDP (whole models) or FSDP "
        "(shares of all)",
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        0,
        description="what DeepSpeed shards over processes: 1 optimizer states, 2 gradients too, 3 weights too. FSDP "
        "shards all three; under 3 it gathers weights again for the backward pass",
    )
    replicate: int = Field(
        1,
        ge=1,
        description="hybrid sharding: groups of processes that each hold all shares, such as one a host, between which "
        "only gradients go (engine fsdp)",
    )
    offload: Literal["none", "optimizer"] = Field(
        "none", description="optimizer: its states, and its step, in the CPU's memory (deepspeed with ZeRO, fsdp)"
    )
    tensor_parallel: int = Field(
        1, ge=1, description="processes that share each layer's heads and feed-forward rows (engine ddp or fsdp)"
    )
    pipeline_parallel: int = Field(
        1, ge=1, description="processes that hold a run of blocks each; micro-batches flow through (engine ddp)"
    )
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = Field(
        "off",
        description="torch.compile of each block (engine ddp or fsdp): max-autotune looks harder for fast kernels, "
        "reduce-overhead takes CUDA graphs, for small models on a GPU (ddp alone)",
    )
    recompute: Literal["none", "selective", "full"] = Field(
        "none",
        description="activations computed again in the backward pass: full is a third more work and far less memory, "
        "selective keeps what matrix products gave",
    )
    log_every: int = Field(10, ge=1, description="training steps between two lines of progress")
    checkpoint_every: int = Field(100, ge=1, description="training steps between two checkpoints")
    keep_checkpoints: int = Field(2, ge=1, description="checkpoints of pretraining that are kept, the newest")
    keep_every: int | None = Field(
        None,
        ge=1,
        description="steps between two checkpoints of pretraining that are kept until its end, beside the newest: a "
        "run that went wrong long ago goes back further. Models that stay: pretrain.snapshot_every",
    )
    async_checkpoints: Literal["auto", "on", "off"] = Field(
        "auto",
        description="write checkpoints of pretraining while it goes on, where the engine can; auto does so on a GPU",
    )
    preflight: Literal["auto", "always", "never"] = Field(
        "auto",
        description="check, before the first step, that the run can learn, fits and resumes; auto does so before 500 "
        "steps or more that begin anew",
    )
    insight_every: int | None = Field(
        None,
        ge=1,
        description="pretraining steps between two looks into the layers: activations, gradients, updates, attention. "
        "Such a step takes a few times as long, and a copy of the weights",
    )
    profile_steps: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (), description="pretraining steps that torch's profiler records, a trace each"
    )
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = Field(
        (), description="who else is told of pretraining's curves; each is an extra to install"
    )
    wandb_online: bool = Field(
        False, description="Weights & Biases sends what it is told to its server; else it stays on this machine"
    )
    timeout_minutes: float | None = Field(None, gt=0, description="a training child older than this is ended")

    restarts: int = Field(
        2,
        ge=0,
        description="how often a pretraining whose process died or hangs is started again from its last checkpoint; "
        "counted anew from each later checkpoint, 0 for never",
    )
    hang_minutes: float = Field(
        30,
        gt=0,
        description="a pretraining that takes longer than this from one step to the next hangs, and is ended",
    )

    @property
    def working_memory(self) -> int:
        """`memory_limit` in bytes; without one, a quarter of the machine's memory."""
        if self.memory_limit is not None:
            return int(self.memory_limit)
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
