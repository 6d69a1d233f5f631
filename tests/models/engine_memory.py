"""`torchrun … -m tests.models.engine_memory PRECISION OUT`: what DeepSpeed and FSDP hold on each of two ranks.

DeepSpeed's bucket is shortened to `BUCKET` numbers, else it would be all that is seen of a model this small.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import torch

from models.config import ModelConfig
from models.presets import ModelShape, derive
from models.transformer import Transformer
from tests.models.live import LiveStorages

BUCKET = 1_000
SHAPE = derive(ModelConfig(depth=4, width=64, heads=2, context=16, tie_embeddings=False), 128)


def held_by_deepspeed(shape: ModelShape, stage: int, bfloat16: bool, folder: Path) -> dict[str, int]:
    """Bytes after the backward passes of the second step, the larger of both, and of a checkpoint."""
    import deepspeed
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    ranks = torch.distributed.get_world_size()
    zero = {"stage": stage, "reduce_bucket_size": BUCKET, "stage3_param_persistence_threshold": 0}
    zero |= {"stage3_prefetch_bucket_size": 0, "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
    settings: dict[str, Any] = {
        "train_batch_size": 2 * ranks, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
        "zero_optimization": zero, "bf16": {"enabled": bfloat16}, "steps_per_print": None,
    }  # fmt: skip
    with LiveStorages(peaks=False) as live:
        model = Transformer(shape)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
        ids_BT = torch.randint(0, shape.vocab_size, (1, shape.context))
        del model
        for _ in range(2):
            held = 0
            for _ in range(2):
                engine.backward(engine(ids_BT, ids_BT))
                gc.collect()
                held = max(held, live.settled)
                engine.step()
    engine.save_checkpoint(str(folder), tag="one")
    torch.distributed.barrier()
    written = sum(path.stat().st_size for path in folder.rglob("*.pt"))
    torch.distributed.barrier()
    return {"held": held, "checkpoint": written}


def held_by_fsdp(shape: ModelShape, stage: int, bfloat16: bool) -> dict[str, int]:
    """Bytes after the backward pass of the second step, when the gathered weights are gone, and the most before.
    Spread as the engine does: under stage 3 alone weights are gathered again for the backward pass."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
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
    results: dict[str, dict[str, int]] = {}
    for stage in range(4):
        folder = out / "checkpoint"
        results[f"deepspeed {stage}"] = held_by_deepspeed(SHAPE, stage, half, folder)
        if os.environ["RANK"] == "0":
            shutil.rmtree(folder)
        torch.distributed.barrier()
    for stage in (0, 3):
        results[f"fsdp {stage}"] = held_by_fsdp(SHAPE, stage, half)
    if os.environ["RANK"] == "0":
        (out / "results.json").write_text(json.dumps(results))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
