"""How a profile spreads its training over devices, in the terms of models/memory.py. No torch: the plan asks too."""

from __future__ import annotations

from models.activations import Precision
from models.memory import Setup
from models.presets import ShapeError
from storage.errors import ConfigError
from tasks.children.hosts import hosts_of
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.recipe.micro_batch import rank_share
from tasks.stage.runtime import Runtime


def setup_of(config: PretrainConfig, runtime: Runtime, *, cuda: bool) -> Setup:
    """The setup of a run on GPUs or CPUs; on one host where a hostfile that is elsewhere says how many there are.

    Raises ConfigError where devices or batches can't be divided evenly.
    """
    chosen, devices = runtime.pretrain, runtime.training.processes * (hosts_of(runtime.training) or 1)
    ranks = max(1, devices // (chosen.tensor_parallel * chosen.pipeline_parallel))
    share = rank_share(config, chosen, ranks=ranks, cuda=cuda)
    try:
        return Setup(
            engine=chosen.engine,
            zero_stage=chosen.zero_stage,
            precision=_precision(config.precision, cuda),
            optimizer=config.optimizer,
            devices=devices,
            tensor_parallel=chosen.tensor_parallel,
            pipeline_parallel=chosen.pipeline_parallel,
            replicate=chosen.replicate,
            offload=chosen.offload,
            recompute=chosen.recompute,
            micro_batch=share.micro_batch,
            micro_steps=share.micro_steps,
            isolate=config.isolate_documents,
            copies_states=chosen.async_checkpoints == "on"
            or (chosen.async_checkpoints == "auto" and cuda and chosen.engine != "deepspeed"),
            cuda=cuda,
        )
    except ShapeError as error:
        raise ConfigError(f"The runtime can't divide its devices: {error}.", "Change runtime.pretrain.") from error


def _precision(asked: str, cuda: bool) -> Precision:
    if asked == "auto":
        return "mixed" if cuda else "float32"
    return "float32" if asked in ("float32", "tf32") else "mixed"
