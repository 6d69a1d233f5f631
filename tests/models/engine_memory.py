"""`torchrun … -m tests.models.engine_memory PRECISION OUT`: the memory of DeepSpeed and FSDP on each of two ranks.

DeepSpeed's bucket is shortened to `BUCKET` numbers, else it would be all that is seen of a model this small.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import torch

from models.config import ModelConfig
from models.presets import ModelShape, derive
from models.transformer import Transformer
from tasks.pretrain.engines.deepspeed import DeepSpeedEngine
from tasks.pretrain.world import World, join
from tests.models.live import LiveStorages
from tests.runtimes import runtime_of
from tests.tasks.pretrain.engines.engine_child import make_spec

BUCKET = 1_000
SETTINGS = DeepSpeedEngine._settings
SHAPE = derive(ModelConfig(depth=4, width=64, heads=2, context=16, tie_embeddings=False), 128)


def held_by_deepspeed(world: World, stage: int, precision: str, folder: Path) -> dict[str, int]:
    """Bytes after the backward passes of the second step, the larger of both, and of a checkpoint."""
    runtime = {"engine": "deepspeed", "zero_stage": stage, "micro_batch": 1}
    config = {"precision": precision, "global_batch": 2 * world.size}
    spec = make_spec(folder, {"shape": "mistral", "config": config, "runtime": runtime})
    spec = spec.model_copy(update={"shape": SHAPE})
    held = 0

    def noting() -> None:
        nonlocal held
        gc.collect()
        held = max(held, live.settled)
        update()

    with LiveStorages(peaks=False) as live:
        engine = DeepSpeedEngine(spec, world)
        ids_BT = torch.randint(0, SHAPE.vocab_size, (1, SHAPE.context))
        update = engine.deepspeed.step
        engine.deepspeed.step = noting
        for _ in range(2):
            held = 0
            engine.step([(ids_BT, ids_BT, None)] * 2, 1e-3)
    engine.save(folder)
    torch.distributed.barrier()
    written = sum(path.stat().st_size for path in folder.rglob("*.pt"))
    torch.distributed.barrier()
    return {"held": held, "checkpoint": written}


def shortened(engine: DeepSpeedEngine) -> dict[str, Any]:
    """The engine's settings, except the sizes of buffers."""
    found = SETTINGS(engine)
    short = {"reduce_bucket_size": BUCKET, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0}
    short |= {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
    return {**found, "zero_optimization": {**found["zero_optimization"], **short}}


def held_by_fsdp(shape: ModelShape, stage: int, bfloat16: bool) -> dict[str, int]:
    """Bytes after the backward pass of the second step, when the gathered weights are gone, and the most before.
    Sharded as by the engine: only under stage 3 weights are gathered again for the backward pass."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if bfloat16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with LiveStorages() as live:
        model = Transformer(shape)
        for module in [*model.blocks, model]:
            fully_shard(module, reshard_after_forward=stage == 3, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        ids_BT = torch.randint(0, shape.vocab_size, (1, shape.context))
        for _ in range(2):
            live.peak = 0
            loss = model(ids_BT, ids_BT)
            loss.backward()
            del loss
            gc.collect()
            held, peak = live.settled, live.peak
            optimizer.step()
    return {"held": held, "peak": peak}


if __name__ == "__main__":
    torch.set_num_threads(1)
    half, out = sys.argv[1] == "mixed", Path(sys.argv[2])
    world = join(runtime_of(threads=1, device="cpu"))
    DeepSpeedEngine._settings = shortened  # type: ignore[method-assign, assignment]
    results: dict[str, dict[str, int]] = {}
    for stage in range(4):
        folder = out / f"checkpoint-{stage}"
        results[f"deepspeed {stage}"] = held_by_deepspeed(world, stage, "bfloat16" if half else "float32", folder)
    for stage in (0, 3):
        results[f"fsdp {stage}"] = held_by_fsdp(SHAPE, stage, half)
    if world.first:
        (out / "results.json").write_text(json.dumps(results))
    world.leave()
