"""Refuses runtime settings that a post-training stage can't honour, by name, before a run starts. No torch."""

from __future__ import annotations

import math

from storage.errors import ConfigError
from tasks.children.devices import check_training_device_here
from tasks.children.hosts import check_hosts, check_hosts_here, hosts_of
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.rollouts.config import EngineConfig
from tasks.stage.runtime import Runtime
from tasks.training.adapters.config import LoraConfig
from tasks.training.batches import BatchShare, share_batch

MICRO_BATCH = 16  # rows of a forward pass, unless the runtime sets micro_batch
MEASURED_ROWS = 8  # pairs of a forward pass of validation


def check_runtime(name: str, config: PosttrainConfig, runtime: Runtime) -> None:
    """Raises ConfigError for engine or batch settings that the stage `name` can't honour."""
    check_hosts(runtime.training)
    settings = runtime.posttrain
    engine, zero = settings.engine, settings.zero_stage
    possible = {
        "zero_stage": {"ddp": zero == 0, "deepspeed": zero > 0, "fsdp": zero in (0, 3)}[engine],
        "offload": settings.offload == "none" or engine == "deepspeed",
        "compile": settings.compile == "off" or engine == "ddp",
        "context_parallel": settings.context_parallel == 1 or engine in ("ddp", "fsdp"),
    }
    for setting, honoured in possible.items():
        if not honoured:
            raise ConfigError(
                f"runtime.posttrain.{setting} is {getattr(settings, setting)}, which the engine {engine} can't do.",
                "Set it to 1, 2 or 3."
                if (engine, setting, zero) == ("deepspeed", "zero_stage", 0)
                else f"Choose an engine that can: `gristmill profile schema` names them for {setting}.",
            )
    processes = processes_of(runtime)
    _check_context(runtime, processes)
    if config.virtual_tokens:
        check_virtual(name, runtime)
    if config.quantized and (engine != "ddp" or settings.compile != "off"):
        setting, value = ("engine", engine) if engine != "ddp" else ("compile", settings.compile)
        raise ConfigError(
            f"{name}.adapter.quantize is nf4, which runtime.posttrain.{setting} {value} can't do.",
            "Set the engine to ddp and compile to off, or leave quantize out.",
        )
    if engine == "fsdp" and isinstance(config.adapter, LoraConfig) and config.adapter.whole:
        raise ConfigError(
            f"{name}.adapter.whole is set, which runtime.posttrain.engine fsdp can't do: its gradients are others.",
            "Use ddp or deepspeed, or leave whole out.",
        )
    if config.samples and (engine == "fsdp" or zero == 3 or settings.compile != "off"):
        under = f"compile {settings.compile}" if settings.compile != "off" else f"engine {engine}, zero_stage {zero}"
        raise ConfigError(
            f"{name}.on_policy_share is set, but answers can't be sampled under runtime.posttrain.{under}.",
            "Use ddp, or deepspeed with zero_stage 1 or 2, and compile off.",
        )
    if engine != "ddp" and processes == 1:
        raise ConfigError(
            f"runtime.posttrain.engine is {engine}, which shards a model over processes, but only one is set.",
            "Raise runtime.training.processes, or set the engine to ddp.",
        )
    if processes is not None:
        row_share(name, config, runtime, processes)


def _check_context(runtime: Runtime, processes: int | None) -> None:
    settings = runtime.posttrain
    ranks = settings.context_parallel
    if processes is not None and processes % ranks:
        raise ConfigError(
            f"runtime.posttrain.context_parallel is {ranks}, which {processes} processes can't be divided by.",
            "Set runtime.training.processes to a multiple of it.",
        )
    if ranks > 1 and settings.compile != "off":
        raise ConfigError(
            f"runtime.posttrain.compile is {settings.compile}, which context_parallel can't do.", "Set it to off."
        )


def check_whole_rows(name: str, runtime: Runtime) -> None:
    """Raises ConfigError for context parallelism, which the stage `name` can't do."""
    if runtime.posttrain.context_parallel > 1:
        raise ConfigError(
            f"runtime.posttrain.context_parallel is {runtime.posttrain.context_parallel}, but {name} needs whole rows.",
            f"Set it to 1 for this stage: `gristmill stage {name} PROFILE --set runtime.posttrain.context_parallel=1`.",
        )


def check_sampling(name: str, runtime: Runtime) -> None:
    """Raises ConfigError for DeepSpeed and torch.compile, under which answers can't be sampled."""
    settings = runtime.posttrain
    for setting, value, others in (("engine", "deepspeed", "fsdp or ddp"), ("compile", "default", "off")):
        if getattr(settings, setting) == value:
            raise ConfigError(
                f"runtime.posttrain.{setting} is {value}, under which {name} can't sample answers.",
                f"Set it to {others}.",
            )


def check_virtual(name: str, runtime: Runtime) -> None:
    """Raises ConfigError for settings under which a model can't read virtual tokens before its text."""
    settings = runtime.posttrain
    needed = {
        "engine": "ddp",
        "compile": "off",
        "recompute": "none",
        "context_parallel": 1,
        **({"packing": False} if name == "sft" else {}),
    }
    for setting, value in needed.items():
        if getattr(settings, setting) != value:
            given, wanted = (str(one).lower() for one in (getattr(settings, setting), value))
            raise ConfigError(
                f"{name}.adapter learns virtual tokens, which runtime.posttrain.{setting} {given} can't do.",
                f"Set it to {wanted}: `--set runtime.posttrain.{setting}={wanted}`.",
            )


def check_engine_runtime(name: str, rollout: EngineConfig, runtime: Runtime) -> None:
    """Raises ConfigError for an engine that this runtime's devices can't have."""
    engine = runtime.posttrain.engine
    if rollout.engine != "transformers" and engine != "ddp":
        raise ConfigError(
            f"{name}.rollout.engine is {rollout.engine}, which takes whole weights, but runtime.posttrain.engine is "
            f"{engine}, which divides them.",
            "Choose the engine transformers, or ddp.",
        )
    device = runtime.compute.device
    if rollout.engine == "vllm" and device == "cpu":
        raise ConfigError(
            f"{name}.rollout.engine is vllm, which gets its weights on a GPU, but runtime.compute.device is cpu.",
            "Choose llama.cpp or transformers.",
        )


def check_here(config: PosttrainConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a hostfile or a GPU that this machine doesn't have."""
    check_hosts_here(runtime.training)
    check_training_device_here(runtime)


def row_share(name: str, config: PosttrainConfig, runtime: Runtime, processes: int) -> BatchShare:
    """The share of a global batch's rows that each process has, or each group that shares rows. Raises ConfigError if
    the batch can't be divided evenly."""
    return share_batch(
        config.global_batch,
        processes // runtime.posttrain.context_parallel,
        micro_batch=runtime.posttrain.micro_batch,
        default=lambda share: math.gcd(share, MICRO_BATCH),
        names=(f"{name}.global_batch", "runtime.posttrain.micro_batch"),
    )


def processes_of(runtime: Runtime) -> int | None:
    """The number of processes over all hosts, or None if it is in a hostfile that this machine doesn't have."""
    hosts = hosts_of(runtime.training)
    return None if hosts is None else runtime.training.processes * hosts
