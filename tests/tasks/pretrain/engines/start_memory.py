"""`torchrun … -m tests.tasks.pretrain.engines.start_memory OUT`: the most that each rank of ZeRO 3 holds until its
weights are drawn, and while the whole model is gathered."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch

from tasks.pretrain.engines import open_engine
from tasks.pretrain.engines.deepspeed import DeepSpeedEngine
from tasks.pretrain.world import join
from tests.models.live import LiveStorages
from tests.tasks.pretrain.engines.engine_child import make_spec

CHANGES = {"depth": 16, "width": 64, "feed_forward": 128}  # so that no parameter is much of the whole
SHORT = {"reduce_bucket_size": 1_000, "stage3_prefetch_bucket_size": 0}  # else buffers are all that is seen


def main() -> None:
    """What every rank held goes into a file."""
    import deepspeed

    folder = Path(sys.argv[1])
    world = join(make_spec(folder, {"shape": "mistral", "runtime": {}}).runtime)
    torch.set_num_threads(1)
    runtime = {"micro_batch": 2, "engine": "deepspeed", "zero_stage": 3}
    drawn, settings, initialize = [], DeepSpeedEngine._settings, deepspeed.initialize

    def shortened(engine: DeepSpeedEngine) -> dict[str, Any]:
        found = settings(engine)
        return {**found, "zero_optimization": {**found["zero_optimization"], **SHORT}}

    def noting(**arguments: Any) -> Any:
        drawn.append(live.peak)
        return initialize(**arguments)

    DeepSpeedEngine._settings = shortened  # type: ignore[method-assign, assignment]
    deepspeed.initialize = noting
    with LiveStorages() as live:
        engine = open_engine(make_spec(folder, {"shape": "mistral", "changes": CHANGES, "runtime": runtime}), world)
        gc.collect()
        held, live.peak = live.settled, 0
        engine.whole_model()
        gathered = live.peak - held
    results = world.gathered({"drawn": drawn[0], "gathered": gathered})
    if world.first:
        (folder / "results.json").write_text(json.dumps(results))
    world.leave()


if __name__ == "__main__":
    main()
