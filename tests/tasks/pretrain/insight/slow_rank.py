"""`torchrun … -m tests.tasks.pretrain.insight.slow_rank OUT`: own times of two ranks, of which the second is slow, by
each engine."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tasks.pretrain.engines import open_engine
from tasks.pretrain.insight.stragglers import OwnTime
from tasks.pretrain.world import World, join
from tests.tasks.pretrain.engines.engine_child import CONTEXT, GLOBAL_BATCH, VOCABULARY, make_spec

STEPS, SLOWER = 2, 0.03  # seconds a block
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    "fsdp": {"engine": "fsdp", "zero_stage": 3},
    "pipeline": {"engine": "ddp", "pipeline_parallel": 2},
    **{f"zero {stage}": {"engine": "deepspeed", "zero_stage": stage} for stage in range(3)},
}


def own_times(folder: Path, world: World, runtime: dict[str, Any]) -> list[float]:
    """The own times of both ranks, over some steps."""
    spec = make_spec(folder, {"shape": "llama", "runtime": {"micro_batch": 1, **runtime}})
    engine: Any = open_engine(spec, world)
    ids = torch.randint(VOCABULARY, (GLOBAL_BATCH, CONTEXT + 1), generator=torch.Generator().manual_seed(1))
    ids = ids[engine.data_rank :: engine.data_ranks]
    own = OwnTime(engine.model.blocks, world.device)
    for block in engine.model.blocks if world.rank else ():
        block.register_forward_pre_hook(lambda *_: time.sleep(SLOWER))
    for _ in range(STEPS):
        own.start(reported=False)
        engine.step([(row[None, :-1], row[None, 1:], None) for row in ids], 1e-3)
        own.stop()
    return world.gathered(own.take(data=0.0))


def main() -> None:
    """Write them to a file."""
    folder = Path(sys.argv[1])
    world = join(make_spec(folder, {"shape": "llama", "runtime": {}}).runtime)
    found = {name: own_times(folder, world, runtime) for name, runtime in ENGINES.items()}
    if world.first:
        (folder / "results.json").write_text(json.dumps(found))
    world.leave()


if __name__ == "__main__":
    main()
