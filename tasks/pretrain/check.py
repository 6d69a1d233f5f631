"""Refuses, before a run starts, runtime settings that pretraining can't honour. No torch: `plan` checks them too."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from models.presets import derive
from storage.errors import ConfigError
from tasks.children.devices import check_training_device_here
from tasks.children.hosts import check_hosts, check_hosts_here, hosts_of
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.insight.settings import check_trackers_here
from tasks.pretrain.recipe.compiling import PARALLEL
from tasks.pretrain.setup import check_shares, setup_of
from tasks.stage.runtime import PretrainRuntime, Runtime

FOLDERS = ("", "file", "local")  # schemes of a store that is a folder
SPECIAL = frozenset({"muon", "float16", "float8"})  # a profile's choices that need the engine's support


def check_runtime(config: PretrainConfig, runtime: Runtime) -> None:
    """Raises ConfigError for contradictory hosts, for settings that the engine does not support, and for processes or
    batches that can't be divided as set, if the number of hosts is known here."""
    check_hosts(runtime.training)
    check_engine(runtime.pretrain)
    check_special({config.optimizer, config.precision}, runtime.pretrain, cuda=runtime.compute.device != "cpu")
    _check_trained(config, runtime.pretrain)
    if runtime.pretrain.branches:
        _check_branches(config, runtime)
    if config.model is not None:  # a base's shares are checked once it is there
        check_shares(derive(config.new_model, vocab_size=1), runtime.pretrain)
    elif runtime.pretrain.preflight == "always":
        raise ConfigError(
            "runtime.pretrain.preflight is always, but its checks are of a new model, not of a base.",
            "Set it to auto or never.",
        )
    if hosts_of(runtime.training) is not None:
        setup_of(config, runtime, cuda=runtime.compute.device == "cuda")


def check_here(config: PretrainConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a hostfile, a GPU or a tracker that this machine lacks."""
    check_hosts_here(runtime.training)
    check_training_device_here(runtime)
    check_trackers_here(runtime)


def check_engine(runtime: PretrainRuntime) -> None:
    """Raises ConfigError for a setting that the engine would ignore, or that conflicts with another setting."""
    engine, zero = runtime.engine, runtime.zero_stage
    chosen = f"{engine} with zero_stage {zero}" if engine == "deepspeed" else engine
    for name, possible, why, instead in _needs(runtime):
        value = getattr(runtime, name)
        if value != type(runtime).model_fields[name].default and not possible:
            raise ConfigError(
                f"runtime.pretrain.{name} is {value}, which the engine {chosen} does not support ({why}).",
                f"{instead}, or leave {name} out.",
            )


def _needs(runtime: PretrainRuntime) -> Iterator[tuple[str, bool, str, str]]:
    """For each setting its name, whether it is possible, why not, and what to do instead."""
    engine = runtime.engine
    torch_engine = "Set runtime.pretrain.engine to ddp or fsdp"
    yield "tensor_parallel", engine != "deepspeed", "its layers are whole in every process", torch_engine
    yield (
        "pipeline_parallel",
        engine == "ddp",
        "it has all blocks in every process",
        "Set runtime.pretrain.engine to ddp, which combines with tensor_parallel",
    )
    yield "context_parallel", engine != "deepspeed", "its rows are whole in every process", torch_engine
    yield (
        "context_parallel",
        runtime.pipeline_parallel == 1,
        "with a pipeline, whose stages pass on whole rows",
        "Set runtime.pretrain.pipeline_parallel to 1, as tensor_parallel and sharding by fsdp combine with it",
    )
    yield (
        "compile",
        not runtime.compiles or engine != "deepspeed" or runtime.zero_stage == 0,
        "blocks whose weights or gradients it shards aren't compiled",
        torch_engine,
    )
    yield (
        "compile",
        engine == "ddp" or runtime.compile != "reduce-overhead",
        "it frees the memory that CUDA graphs read weights from",
        "Set runtime.pretrain.compile to default, or the engine to ddp",
    )
    yield (
        "offload",
        engine == "fsdp" or (engine == "deepspeed" and runtime.zero_stage > 0),
        "optimizer states are whole in every process",
        "Set runtime.pretrain.engine to fsdp, or to deepspeed with a zero_stage from 1 to 3",
    )
    yield "zero_stage", engine != "ddp", "it shards nothing", "Set runtime.pretrain.engine to deepspeed or fsdp"
    yield "replicate", engine == "fsdp", "it does not form groups of shards", "Set runtime.pretrain.engine to fsdp"


def check_foreign(needs: str, config: PretrainConfig, runtime: PretrainRuntime) -> None:
    """Raises ConfigError for a setting that needs our own decoder, which `needs` says and why it isn't there."""
    needed = {
        **{f"runtime.pretrain.{name}": getattr(runtime, name) > 1 for name in PARALLEL},
        "runtime.pretrain.compile": runtime.compiles,
        "pretrain.precision float8": config.precision == "float8",
        "pretrain.isolate_documents": config.isolate_documents,
        "pretrain.optimizer muon": config.adapter is not None and config.optimizer == "muon",
    }
    if setting := next((name for name, chosen in needed.items() if chosen), None):
        raise ConfigError(f"{setting} needs {needs}.", "Leave the setting out, or choose another base.")


def check_computed_by_transformers(family: str, config: PretrainConfig, runtime: PretrainRuntime) -> None:
    """`check_foreign` for a base of a family that our decoder doesn't compute."""
    ours = "a model that our decoder computes, such as a Llama"
    check_foreign(f"{ours}. transformers computes this base, a {family}", config, runtime)


def _check_trained(config: PretrainConfig, runtime: PretrainRuntime) -> None:
    if config.adapter is not None:
        check_foreign("all weights in training, but pretrain.adapter lays layers over the base", config, runtime)
    if config.freeze is not None and runtime.pipeline_parallel > 1:
        raise ConfigError(
            "runtime.pretrain.pipeline_parallel needs gradients in every stage, but pretrain.freeze leaves some out.",
            "Leave one of them out: tensor_parallel and engine fsdp work with frozen weights.",
        )
    if config.freeze is not None and config.model is not None:  # a base is checked once it is there
        from tasks.pretrain.engines.trained import trained_sizes

        trained_sizes(derive(config.new_model, vocab_size=1), config, None)


def is_folder(store: str) -> bool:
    """Whether the address of a store is a folder's."""
    return urlsplit(store).scheme in FOLDERS


def _check_branches(config: PretrainConfig, runtime: Runtime) -> None:
    if config.schedule != "wsd":
        raise ConfigError(
            f"runtime.pretrain.branches is true, but by pretrain.schedule {config.schedule} each step depends on the "
            "length of the training.",
            "Set pretrain.schedule to wsd, or leave branches out.",
        )
    if not is_folder(runtime.store):
        raise ConfigError(
            f"runtime.pretrain.branches is true, but the store {runtime.store} is not a folder.",
            "Leave branches out, or choose a folder as runtime.store.",
        )


def is_shardable(choices: set[str], runtime: PretrainRuntime) -> bool:
    """Whether the engine, or fsdp in place of ddp, can shard a training with an optimizer and a precision."""
    return not choices & (SPECIAL if runtime.engine == "deepspeed" else SPECIAL - {"muon"})


def check_special(choices: set[str], runtime: PretrainRuntime, *, cuda: bool) -> None:
    """Raises ConfigError for an optimizer or a precision that the engine can't train with."""
    split = next((name for name in ("tensor_parallel", "pipeline_parallel") if getattr(runtime, name) > 1), None)
    cause, supported = f"the engine {runtime.engine}", frozenset({"muon"})
    if split:  # gradients that overflow on other ranks
        cause = f"runtime.pretrain.{split} {getattr(runtime, split)}"
    elif runtime.engine == "ddp":
        supported = SPECIAL
    elif runtime.engine == "deepspeed" and runtime.zero_stage:
        cause = f"runtime.pretrain.zero_stage {runtime.zero_stage}"
        supported = frozenset({"float16"} if cuda else ())  # with ZeRO's own loss scaling
    for missing in sorted(choices & SPECIAL - supported):
        raise ConfigError(
            f"{missing} does not work with {cause}.",
            "Set runtime.pretrain.engine to fsdp or ddp, or zero_stage to 0, or pretrain.optimizer to adamw, with "
            "muon_learning_rate null."
            if missing == "muon"
            else "Set runtime.pretrain.engine to ddp, without tensor or pipeline parallelism, or set another "
            "pretrain.precision.",
        )
