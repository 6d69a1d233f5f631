"""How a profile spreads its training over devices, in the terms of models/memory. No torch: `plan` needs it too."""

from __future__ import annotations

from models.activations import Precision
from models.memory import Setup
from models.presets import ForeignShape, ModelShape, Shape, ShapeError, count_parameters
from storage.errors import ConfigError
from tasks.children.hosts import hosts_of
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.recipe.micro_batch import rank_share
from tasks.stage.runtime import PretrainRuntime, Runtime


def setup_of(config: PretrainConfig, runtime: Runtime, *, cuda: bool) -> Setup:
    """The setup of a run on GPUs or CPUs. Assumes one host if their number is in a hostfile on another machine.

    Raises ConfigError if devices or batches can't be divided evenly.
    """
    chosen, devices = runtime.pretrain, runtime.training.processes * (hosts_of(runtime.training) or 1)
    ranks = max(1, devices // (chosen.tensor_parallel * chosen.pipeline_parallel * chosen.context_parallel))
    share = rank_share(config, chosen, ranks=ranks, cuda=cuda)
    check_pipeline(chosen.pipeline_parallel, share.micro_steps)
    try:
        return Setup(
            engine=chosen.engine,
            zero_stage=chosen.zero_stage,
            precision=_precision(config.precision, cuda),
            optimizer=config.optimizer,
            devices=devices,
            tensor_parallel=chosen.tensor_parallel,
            pipeline_parallel=chosen.pipeline_parallel,
            context_parallel=chosen.context_parallel,
            replicate=chosen.replicate,
            offload=chosen.offload,
            recompute=chosen.recompute,
            micro_batch=share.micro_batch,
            micro_steps=share.micro_steps,
            isolate=config.isolate_documents,
            copies_states=chosen.async_checkpoints == "on"
            or (chosen.async_checkpoints == "auto" and cuda and chosen.engine != "deepspeed"),
            averages=(config.ema_decay is not None) + (config.average is not None),
            compiled=chosen.compiles,
            cuda=cuda,
        )
    except ShapeError as error:
        raise ConfigError(
            f"The runtime can't divide its devices: {error}.",
            "Change runtime.training.processes or hosts, or these settings of runtime.pretrain.",
        ) from error


def trained_share(config: PretrainConfig, shape: Shape) -> float:
    """The numbers that are trained, as a share of the model's parameters: fewer with frozen weights or an adapter."""
    if config.trains_all:
        return 1.0
    total = count_parameters(shape)
    if isinstance(shape, ForeignShape):
        from models.memory.traced import TracedShape  # imports torch

        assert isinstance(shape, TracedShape)
        return shape.learned / total
    matrix, norm = shape.vocab_size * shape.width, shape.width * (1 if shape.gated else 2)
    norms = shape.block_norms * norm + sum(shape.head_norms or ())  # of a layer
    learned_positions = shape.context * shape.width if shape.rope_theta is None else 0
    parts = {
        "embedding": matrix + learned_positions,
        "head": 0 if shape.tie_embeddings else matrix,
        "norms": norm + shape.depth * norms,
    }
    freeze = config.freeze
    assert freeze is not None
    layer = (total - parts["embedding"] - parts["head"] - norm) // shape.depth
    first, last = freeze.layers or freeze.all_but_layers or (0, -1)
    within, named = last + 1 - first, "norms" in freeze.parts
    if freeze.all_but_layers is not None:
        return within * (layer - norms * named) / total
    frozen = sum(parts[part] for part in freeze.parts) + within * (layer - norms * named)
    return (total - frozen) / total


def check_pipeline(stages: int, micro_steps: int) -> None:
    """Raises ConfigError if a step has too few micro-batches for all stages to work at the same time."""
    if micro_steps < stages:
        raise ConfigError(
            f"A step has {micro_steps} micro-batches, too few to fill {stages} pipeline stages.",
            "Lower runtime.pretrain.micro_batch, or raise pretrain.global_batch.",
        )


def check_shares(shape: ModelShape, runtime: PretrainRuntime) -> None:
    """Raises ConfigError if tensor-parallel processes can't share a layer evenly, if context-parallel ones can't share
    the tokens and the heads left to them, if a pipeline stage would lack a block, or for what a mixture of experts
    can't be trained with."""
    if shape.experts:
        _check_mixture(runtime)
    ways, ranks = runtime.tensor_parallel, runtime.context_parallel
    if runtime.pipeline_parallel > shape.depth:
        raise ConfigError(
            f"runtime.pretrain.pipeline_parallel is {runtime.pipeline_parallel}, but the model has {shape.depth} "
            "blocks.",
            "Choose no more stages than blocks.",
        )
    if ways > 1 and shape.joint_norms:
        raise ConfigError(
            f"runtime.pretrain.tensor_parallel is {ways}, but {shape.family} normalises all heads together.",
            "Set it to 1 and shard by fsdp, or choose gemma3, which normalises each head.",
        )
    heads = {"heads": shape.heads, "kv_heads": shape.kv_heads}
    for name, count in {**heads, "feed_forward": shape.feed_forward}.items():
        if count % ways:
            raise ConfigError(
                f"runtime.pretrain.tensor_parallel is {ways}, but the model has {count} {name}.",
                "Choose a tensor_parallel that divides heads, kv_heads and feed_forward.",
            )
    for name, count in {"context": shape.context, **{name: count // ways for name, count in heads.items()}}.items():
        if count % ranks:
            by = f" for each of {ways} tensor-parallel processes" if ways > 1 and name in heads else ""
            raise ConfigError(
                f"runtime.pretrain.context_parallel is {ranks}, but the model has {count} {name}{by}.",
                "Choose a context_parallel that divides context, heads and kv_heads.",
            )


def _check_mixture(runtime: PretrainRuntime) -> None:
    for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
        if (value := getattr(runtime, name)) > 1:
            raise ConfigError(
                f"runtime.pretrain.{name} is {value}, which a mixture of experts does not support.",
                f"Leave {name} out, and set runtime.pretrain.engine to fsdp or deepspeed to share the model out.",
            )
    if runtime.compile == "reduce-overhead":
        raise ConfigError(
            "runtime.pretrain.compile is reduce-overhead, which a mixture of experts does not support, as groups of "
            "tokens vary in size.",
            "Set it to default.",
        )


def _precision(name: str, cuda: bool) -> Precision:
    if name == "auto":
        return "mixed" if cuda else "float32"
    return "float32" if name in ("float32", "tf32") else "mixed"
