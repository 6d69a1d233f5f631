"""`torchrun … -m tests.tasks.pretrain.engines.start_memory OUT`: each rank's peak memory, for each engine, while it is
built and while the whole model is gathered."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch

from tasks.pretrain.engines import open_engine
from tasks.pretrain.engines.deepspeed import DeepSpeedEngine
from tasks.pretrain.world import World, join
from tests.models.live import LiveStorages
from tests.tasks.pretrain.engines.engine_child import CONTEXT, VOCABULARY, make_spec

CHANGES = {"depth": 16, "width": 64, "feed_forward": 128}  # so that each parameter is a small part of the whole
BUCKET = 1_000  # numbers: otherwise buffers would hide everything else
SHORT = {"reduce_bucket_size": BUCKET, "stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 0}
SETTINGS = DeepSpeedEngine._settings
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    **{f"fsdp {stage}": {"engine": "fsdp", "zero_stage": stage} for stage in (0, 3)},
    **{f"deepspeed {stage}": {"engine": "deepspeed", "zero_stage": stage} for stage in range(4)},
}


def shortened(engine: DeepSpeedEngine) -> dict[str, Any]:
    """The engine's settings, except the sizes of buffers."""
    found = SETTINGS(engine)
    return {**found, "zero_optimization": {**found["zero_optimization"], **SHORT}}


def peaks(folder: Path, world: World, runtime: dict[str, Any], precision: str) -> dict[str, int]:
    """Bytes at the peak of building the engine, and of gathering the model after a step."""
    config = {"precision": precision, "global_batch": world.size}
    case = {"shape": "mistral", "changes": CHANGES, "config": config, "runtime": {"micro_batch": 1, **runtime}}
    ids_BT = torch.randint(0, VOCABULARY, (1, CONTEXT))
    gc.collect()  # so that the next case starts without this one's garbage
    with LiveStorages() as live:
        engine = open_engine(make_spec(folder, case), world)
        start = live.peak
        engine.step([(ids_BT, ids_BT, None)], 1e-3)
        gc.collect()
        assert live.settled
        live.peak = 0
        engine.whole_model()
        return {"start": start, "end": live.peak}


def main() -> None:
    """Write the peaks of every rank to a file."""
    folder = Path(sys.argv[1])
    world = join(make_spec(folder, {"shape": "mistral", "runtime": {}}).runtime)
    torch.set_num_threads(1)
    DeepSpeedEngine._settings = shortened  # type: ignore[method-assign, assignment]
    found = {
        f"{name}, {precision}": peaks(folder, world, runtime, precision)
        for precision in ("float32", "bfloat16")
        for name, runtime in ENGINES.items()
    }
    results = world.gathered(found)
    if world.first:
        (folder / "results.json").write_text(json.dumps(results))
    world.leave()


if __name__ == "__main__":
    main()
