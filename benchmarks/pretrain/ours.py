"""Our side: the `pretrain` stage on token shards, with its loader, log, checkpoint and validation."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.pretrain.sizes import BATCH, BETAS, CLIP, CONTEXT, LEARNING_RATE, WARM, WEIGHT_DECAY, Task
from storage.artifact import Artifact
from tasks.pretrain import PretrainConfig, pretrain
from tasks.stage.output import Output
from tasks.stage.runtime import ComputeRuntime, PretrainRuntime, Runtime, TrainingRuntime

ENGINES: dict[str, dict[str, Any]] = {
    "gristmill": {"engine": "ddp"},
    "gristmill, DeepSpeed": {"engine": "deepspeed"},
    "gristmill, compiled": {"engine": "ddp", "compile": "default"},
}
EVERY = 5  # steps between progress lines: the speed is a median over them, so that the first ones don't count


def run(task: Task) -> dict[str, float]:
    """Seconds per step, the median over reports; the loss, peak memory, and the measured peak FLOP/s."""
    shape = task.shape
    model = {"family": task.family, "depth": shape.depth, "width": shape.width, "heads": shape.heads}
    if task.family == "llama":
        model |= {"kv_heads": shape.kv_heads, "feed_forward": shape.feed_forward}
    steps = WARM + shape.steps
    config = PretrainConfig.model_validate(
        {
            "model": {**model, "context": CONTEXT, "tie_embeddings": True},
            "steps": steps,
            "global_batch": BATCH,
            "learning_rate": LEARNING_RATE,
            "warmup_steps": 1,
            "weight_decay": WEIGHT_DECAY,
            "beta1": BETAS[0],
            "beta2": BETAS[1],
            "gradient_clip": CLIP,
            "validation_every": steps,
            "validation_tokens": 4096,
            "sample_tokens": 1,
            "sample_prompts": ["The"],
        }
    )
    runtime = Runtime(
        compute=ComputeRuntime(device="cpu", threads=task.threads),
        training=TrainingRuntime(log_every=EVERY, checkpoint_every=steps),
        pretrain=PretrainRuntime.model_validate({"micro_batch": BATCH, "preflight": "never", **ENGINES[task.side]}),
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Output.at(Path(folder), stage="pretrain", runtime=runtime)
        pretrain.function(config, Artifact.at(Path(task.tokens)), Artifact.at(Path(task.tokenizer)), out)
    facts = out.facts
    return {
        "seconds": BATCH * CONTEXT / facts["tokens_per_second"],
        "loss": out.counts["train_loss"],
        "peak": facts["peak_memory_bytes"],
        "peak_flops": facts["peak_flops"],
    }


if __name__ == "__main__":
    print(json.dumps(run(Task.from_arguments())))
