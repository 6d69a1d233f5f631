"""What pretraining can't honour of the runtime, refused by name before a run starts. No torch: the plan asks too."""

from __future__ import annotations

from models.presets import derive
from storage.errors import ConfigError
from tasks.children.devices import check_training_device_here
from tasks.children.hosts import check_hosts, check_hosts_here, hosts_of
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.insight.settings import check_trackers_here
from tasks.pretrain.setup import check_shares, setup_of
from tasks.stage.runtime import PretrainRuntime, Runtime

SPECIAL = frozenset({"muon", "float16", "float8"})  # choices of a profile that need the engine's support


def check_runtime(config: PretrainConfig, runtime: Runtime) -> None:
    """Raises ConfigError for hosts that contradict each other, for what the engine does not support, and for processes
    or batches that can't be divided as asked, as far as the number of hosts is known here."""
    check_hosts(runtime.training)
    check_engine(runtime.pretrain)
    check_special({config.optimizer, config.precision}, runtime.pretrain, cuda=runtime.compute.device != "cpu")
    check_shares(derive(config.model, vocab_size=1), runtime.pretrain)
    if hosts_of(runtime.training) is not None:
        setup_of(config, runtime, cuda=runtime.compute.device == "cuda")


def check_here(config: PretrainConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a hostfile, a GPU or a tracker that this machine has not."""
    check_hosts_here(runtime.training)
    check_training_device_here(runtime)
    check_trackers_here(runtime)


def check_engine(runtime: PretrainRuntime) -> None:
    """Raises ConfigError for a setting that would have no effect with the engine."""
    engine, zero = runtime.engine, runtime.zero_stage
    can = {
        "tensor_parallel": engine != "deepspeed",
        "pipeline_parallel": engine == "ddp",
        "context_parallel": engine != "deepspeed" and runtime.pipeline_parallel == 1,
        # CUDA graphs don't work with FSDP: it frees the memory that they read weights from
        "compile": engine == "ddp" or (engine == "fsdp" and runtime.compile != "reduce-overhead"),
        "offload": engine == "fsdp" or (engine == "deepspeed" and zero > 0),
        "zero_stage": engine != "ddp",
        "replicate": engine == "fsdp",
    }
    for name, possible in can.items():
        asked = getattr(runtime, name)
        if asked != type(runtime).model_fields[name].default and not possible:
            chosen = f"{engine} with zero_stage {zero}" if engine == "deepspeed" else engine
            raise ConfigError(
                f"runtime.pretrain.{name} is {asked}, which the engine {chosen} does not support.",
                f"Choose an engine that can (`gristmill profile schema` names them for {name}), or leave it out.",
            )


def check_special(choices: set[str], runtime: PretrainRuntime, *, cuda: bool) -> None:
    """Raises ConfigError for an optimizer or a precision that the engine can't train with."""
    whole = runtime.engine == "ddp" and runtime.tensor_parallel == runtime.pipeline_parallel == 1
    if whole:
        supported = SPECIAL
    elif runtime.engine == "deepspeed" and runtime.zero_stage and cuda:
        supported = frozenset({"float16"})  # with ZeRO's own loss scaling
    else:
        supported = frozenset()  # split matrices, and gradients that overflow on other ranks
    missing = choices & SPECIAL - supported
    if missing:
        raise ConfigError(
            f"The engine {runtime.engine} can't train with {' and '.join(sorted(missing))}.",
            "Set runtime.pretrain.engine to ddp without tensor or pipeline parallelism, or choose another "
            "pretrain.optimizer and pretrain.precision.",
        )
