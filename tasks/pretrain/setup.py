"""How a profile spreads its training over devices, in the terms of models/memory.py. No torch: the plan asks too."""

from __future__ import annotations

from pathlib import Path

from models.activations import Precision
from models.memory import Setup
from models.presets import ShapeError
from storage.errors import ConfigError
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.recipe.micro_batch import rank_share
from tasks.stage.runtime import Runtime


def setup_of(config: PretrainConfig, runtime: Runtime, *, cuda: bool) -> Setup:
    """The setup of a run on GPUs or CPUs. Raises ConfigError where devices or batches can't be divided evenly."""
    chosen, devices = runtime.pretrain, runtime.training.processes * _hosts(runtime)
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
            cuda=cuda,
        )
    except ShapeError as error:
        raise ConfigError(f"The runtime can't divide its devices: {error}.", "Change runtime.pretrain.") from error


def _precision(asked: str, cuda: bool) -> Precision:
    if asked == "auto":
        return "mixed" if cuda else "float32"
    return "float32" if asked in ("float32", "tf32") else "mixed"


def _hosts(runtime: Runtime) -> int:
    """Lines of the hostfile; without one on this machine, the hosts that meet at the rendezvous."""
    if runtime.training.hostfile is None or not Path(runtime.training.hostfile).is_file():
        return runtime.training.hosts
    lines = (line.partition("#")[0].strip() for line in Path(runtime.training.hostfile).read_text().splitlines())
    return max(1, sum(bool(line) for line in lines))
