"""Our side: the `pretrain` stage on token shards, with its loader, log, checkpoint and validation."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import end_as_interrupted
from benchmarks.pretrain.sizes import BETAS, CLIP, LEARNING_RATE, WARM, WEIGHT_DECAY, Task
from models.presets import ModelShape, derive
from storage.artifact import Artifact
from tasks.pretrain import PretrainConfig, pretrain
from tasks.stage.output import Output
from tasks.stage.runtime import ComputeRuntime, PretrainRuntime, Runtime, TrainingRuntime

ENGINES: dict[str, dict[str, Any]] = {
    "gristmill": {"engine": "ddp"},
    "gristmill, DeepSpeed": {"engine": "deepspeed"},
    "gristmill, compiled": {"engine": "ddp", "compile": "default"},
    "gristmill, FSDP, compiled": {"engine": "fsdp", "compile": "default"},
}
EVERY = 5  # steps between progress lines: the speed is a median over them, so that the first ones don't count


def shape_of(task: Task) -> ModelShape:
    """The model that every side of a task trains."""
    return derive(config_of(task).model, task.size.vocab)


def config_of(task: Task) -> PretrainConfig:
    """The recipe that every side of a task follows."""
    size, steps = task.size, WARM + task.size.steps
    only_llama = {"kv_heads": size.kv_heads, "feed_forward": size.feed_forward} if task.family == "llama" else {}
    return PretrainConfig.model_validate(
        {
            "model": {
                "family": task.family, "depth": size.depth, "width": size.width, "heads": size.heads,
                "context": size.context, "tie_embeddings": True, **only_llama,
            },
            "steps": steps,
            "global_batch": size.batch,
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
    )  # fmt: skip


def runtime_of(task: Task) -> Runtime:
    """How our side trains it."""
    chosen = {"micro_batch": task.size.micro_batch, "preflight": "never", **ENGINES[task.side]}
    return Runtime(
        compute=ComputeRuntime.model_validate({"device": task.device, "threads": task.threads}),
        training=TrainingRuntime(log_every=EVERY, checkpoint_every=WARM + task.size.steps),
        pretrain=PretrainRuntime.model_validate(chosen),
    )


def run(task: Task) -> dict[str, float]:
    """Seconds per step, the median over reports; the loss, peak memory, the share of time that data took, and the
    measured peak FLOP/s."""
    with tempfile.TemporaryDirectory() as folder:
        out = Output.at(Path(folder), stage="pretrain", runtime=runtime_of(task))
        pretrain.function(config_of(task), Artifact.at(Path(task.tokens)), Artifact.at(Path(task.tokenizer)), out)
    facts = out.facts
    return {
        "seconds": task.size.tokens / facts["tokens_per_second"],
        "loss": out.counts["train_loss"],
        "peak": facts["peak_memory_bytes"],
        "peak_flops": facts["peak_flops"],
        "data": facts["data_share"],
    }


if __name__ == "__main__":
    end_as_interrupted()
    print(json.dumps(run(Task.from_arguments())))
