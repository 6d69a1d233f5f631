"""`torchrun … -m tests.tasks.pretrain.engines.accumulation OUT`: how far the gradients of one step over many
micro-batches in bfloat16 are from those of float32, by each engine.

After the first step Adam's first moment is the gradient, times a tenth."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from tasks.pretrain.engines import Engine, open_engine
from tasks.pretrain.engines.deepspeed import DeepSpeedEngine
from tasks.pretrain.engines.native import NativeEngine
from tasks.pretrain.engines.universal import convert
from tasks.pretrain.world import World, join
from tests.tasks.pretrain.engines.engine_child import CONTEXT, VOCABULARY, make_spec

GLOBAL_BATCH = 64
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    "fsdp": {"engine": "fsdp"},
    **{f"zero {stage}": {"engine": "deepspeed", "zero_stage": stage} for stage in range(4)},
    **{
        f"zero {stage}, offload": {"engine": "deepspeed", "zero_stage": stage, "offload": "optimizer"}
        for stage in (1, 2, 3)
    },
}


def gradients(folder: Path, world: World, precision: str, runtime: dict[str, Any]) -> dict[str, Tensor]:
    """The gradients of the first step, by name. Empty on all ranks but the first."""
    config = {"precision": precision, "gradient_clip": 1e9, "global_batch": GLOBAL_BATCH, "optimizer": "adamw"}
    spec = make_spec(folder, {"shape": "llama", "config": config, "runtime": {"micro_batch": 1, **runtime}})
    engine = open_engine(spec, world)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCABULARY, (GLOBAL_BATCH, CONTEXT + 1), generator=generator)
    ids = ids[engine.data_rank :: engine.data_ranks]
    assert engine.micro_steps == len(ids)
    engine.step([(row[None, :-1], row[None, 1:], None) for row in ids], 1e-3)
    return moments(engine, folder)


def moments(engine: Engine, folder: Path) -> dict[str, Tensor]:
    """Adam's first moments of the whole parameters."""
    if isinstance(engine, NativeEngine):
        states = {name: engine.optimizer.state[held]["exp_avg"] for name, (held, _) in engine.parameters.items()}
        return {name: state.full_tensor() if isinstance(state, DTensor) else state for name, state in states.items()}
    assert isinstance(engine, DeepSpeedEngine)
    saved, together = folder / "saved", folder / "together"
    engine.save(saved)
    engine.world.wait()
    found = {}
    if engine.world.first:
        convert(saved, together, engine.topology, engine.deepspeed.optimizer.param_groups, engine.sizes)
        for name in engine.sizes:
            found[name] = torch.load(together / "zero" / name / "exp_avg.pt", weights_only=True)["param"].float()
        shutil.rmtree(saved)
    engine.world.wait()
    return found


def main() -> None:
    """Write the relative distance of each engine to a file."""
    folder = Path(sys.argv[1])
    world = join(make_spec(folder, {"shape": "llama", "runtime": {}}).runtime)
    torch.set_num_threads(1)
    exact = gradients(folder, world, "float32", {"engine": "ddp"})
    distances = {}
    for name, runtime in ENGINES.items():
        found = gradients(folder, world, "bfloat16", runtime)
        if world.first:
            apart = sum(float((found[each].view_as(exact[each]) - exact[each]).square().sum()) for each in exact)
            distances[name] = (apart / sum(float(each.square().sum()) for each in exact.values())) ** 0.5
    if world.first:
        (folder / "results.json").write_text(json.dumps(distances))
    world.leave()


if __name__ == "__main__":
    main()
