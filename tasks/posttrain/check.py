"""What a post-training stage can't honour of the runtime, refused by name before a run starts. No torch."""

from __future__ import annotations

import math
from typing import Protocol

from storage.errors import ConfigError
from tasks.children.devices import check_training_device_here
from tasks.children.hosts import check_hosts, check_hosts_here, hosts_of
from tasks.posttrain.config import PosttrainConfig
from tasks.stage.runtime import Runtime
from tasks.training.batches import BatchShare, share_batch


class Limited(Protocol):
    """A config that limits the tokens of a pair."""

    @property
    def max_length(self) -> int | None:
        """Tokens; None for the context."""


MICRO_BATCH = 16  # rows in a forward pass, where the runtime sets no micro_batch


def check_runtime(name: str, config: PosttrainConfig, runtime: Runtime) -> None:
    """Raises ConfigError for settings that the stage `name` can't honour with the engine or the batch."""
    check_hosts(runtime.training)
    asked = runtime.posttrain
    engine, zero = asked.engine, asked.zero_stage
    possible = {
        "zero_stage": {"ddp": zero == 0, "deepspeed": zero > 0, "fsdp": zero in (0, 3)}[engine],
        "offload": asked.offload == "none" or engine == "deepspeed",
        "compile": asked.compile == "off" or engine == "ddp",
    }
    for setting, honoured in possible.items():
        if not honoured:
            raise ConfigError(
                f"runtime.posttrain.{setting} is {getattr(asked, setting)}, which the engine {engine} can't do.",
                "Set it to 1, 2 or 3."
                if (engine, setting, zero) == ("deepspeed", "zero_stage", 0)
                else f"Choose an engine that can: `gristmill profile schema` names them for {setting}.",
            )
    processes = processes_of(runtime)
    if config.quantized and (engine != "ddp" or asked.compile != "off"):
        setting, value = ("engine", engine) if engine != "ddp" else ("compile", asked.compile)
        raise ConfigError(
            f"{name}.adapter.quantize is nf4, which runtime.posttrain.{setting} {value} can't do.",
            "Set the engine to ddp and compile to off, or leave quantize out.",
        )
    if engine != "ddp" and processes == 1:
        raise ConfigError(
            f"runtime.posttrain.engine is {engine}, which shards a model over processes, but there is only one.",
            "Raise runtime.training.processes, or set the engine to ddp.",
        )
    if processes is not None:
        row_share(name, config, runtime, processes)


def check_alone(name: str, runtime: Runtime) -> None:
    """Raises ConfigError for more than one process, and for torch.compile, under which answers can't be sampled."""
    if processes_of(runtime) != 1:
        raise ConfigError(
            f"{name} samples and trains in one process, but runtime.training.processes is "
            f"{runtime.training.processes}, or there are several hosts.",
            f"Set it to 1 for this stage: `gristmill stage {name} PROFILE --set runtime.training.processes=1`.",
        )
    if runtime.posttrain.compile != "off":
        raise ConfigError(
            f"runtime.posttrain.compile is {runtime.posttrain.compile}, which {name} can't do.", "Set it to off."
        )


def check_here(config: PosttrainConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a hostfile or a GPU that this machine has not."""
    check_hosts_here(runtime.training)
    check_training_device_here(runtime)


def max_length_of(name: str, config: Limited, context: int) -> int:
    """Tokens that a rendered pair may have. Raises ConfigError for more than the model's context."""
    asked = config.max_length or context
    if asked > context:
        raise ConfigError(
            f"{name}.max_length is {asked}, but the model's context is {context}.",
            f"Lower it to {context}, or train a model that sees more (pretrain.model.context, with `pretrain`).",
        )
    return asked


def check_room(name: str, config: PosttrainConfig, max_length: int) -> None:
    """Raises ConfigError where an answer may take all of the tokens that there are for a prompt and an answer."""
    if config.generated_tokens >= max_length:
        raise ConfigError(
            f"{name}.max_new_tokens is {config.generated_tokens:,}, which of {max_length:,} tokens leaves none for a "
            "prompt.",
            "Lower it, or raise the context.",
        )


def row_share(name: str, config: PosttrainConfig, runtime: Runtime, processes: int) -> BatchShare:
    """The rows that each process takes of a global batch. Raises ConfigError where they can't be shared evenly."""
    return share_batch(
        config.global_batch,
        processes,
        micro_batch=runtime.posttrain.micro_batch,
        default=lambda share: math.gcd(share, MICRO_BATCH),
        names=(f"{name}.global_batch", "runtime.posttrain.micro_batch"),
    )


def processes_of(runtime: Runtime) -> int | None:
    """Processes over all hosts; None where a hostfile says so that is not on this machine."""
    hosts = hosts_of(runtime.training)
    return None if hosts is None else runtime.training.processes * hosts
