"""Our side: the training of the `pretrain` stage on token shards, with its loader, log and validation.

It is done in this process, as the stage's child does it: a new Python for each run would import everything twice.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import end_as_interrupted
from benchmarks.pretrain.sizes import BETAS, CLIP, LEARNING_RATE, WARM, WEIGHT_DECAY, Task
from models.presets import ModelShape, derive
from models.tokenizer import tokenizer_digest
from tasks.pretrain import PretrainConfig
from tasks.pretrain.spec import TrainSpec
from tasks.stage.runtime import ComputeRuntime, PretrainRuntime, Runtime, TrainingRuntime
from tasks.training.logs import read_log

ENGINES: dict[str, dict[str, Any]] = {
    "gristmill": {"engine": "ddp", "compile": "off"},
    "gristmill, DeepSpeed": {"engine": "deepspeed", "compile": "off"},
    "gristmill, compiled": {"engine": "ddp", "compile": "default"},
    "gristmill, FSDP, compiled": {"engine": "fsdp", "compile": "default"},
    "gristmill, compiled, documents apart": {"engine": "ddp", "compile": "default"},
    "gristmill, compiled, float8": {"engine": "ddp", "compile": "default"},
}
RECIPES: dict[str, dict[str, Any]] = {  # of sides whose recipe is not that of all
    "gristmill, compiled, documents apart": {"isolate_documents": True},
    "gristmill, compiled, float8": {"precision": "float8"},
}
EVERY = 5  # steps between reports of the speed, which are medians: WARM steps are the first


def shape_of(task: Task) -> ModelShape:
    """The model that every side of a task trains."""
    return derive(config_of(task).new_model, task.size.vocab)


def config_of(task: Task) -> PretrainConfig:
    """The recipe that every side of a task follows, but for what its name says."""
    size, steps = task.size, WARM + task.size.steps
    only_llama = {"kv_heads": size.kv_heads, "feed_forward": size.feed_forward} if task.family == "llama" else {}
    return PretrainConfig.model_validate(
        {
            "model": {
                "family": task.family,
                "depth": size.depth,
                "width": size.width,
                "heads": size.heads,
                "context": size.context,
                "tie_embeddings": True,
                **only_llama,
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
            **RECIPES.get(task.side, {}),
        }
    )


def runtime_of(task: Task) -> Runtime:
    """How our side trains it."""
    chosen = {"micro_batch": task.size.micro_batch, "preflight": "never", **ENGINES[task.side]}
    return Runtime(
        compute=ComputeRuntime.model_validate({"device": task.device, "threads": task.threads}),
        training=TrainingRuntime(
            log_every=EVERY,
            checkpoint_every=WARM + task.size.steps,
            stop_grace_seconds=0,  # takes no signals
        ),
        pretrain=PretrainRuntime.model_validate(chosen),
    )


def run(task: Task) -> dict[str, float]:
    """Seconds per step, the median over reports after the first steps; the loss, the share of these seconds that was
    waiting for data, and the measured peak FLOP/s."""
    from tasks.pretrain.train import train

    with tempfile.TemporaryDirectory() as folder:
        spec = _spec(task, Path(folder))
        path = spec.scratch / "spec.json"
        path.write_text(spec.model_dump_json())
        train(path)
        begun, *reports = read_log(spec.insight / "speed.jsonl")
        measured = json.loads(spec.result.read_text())
    counted = [report for report in reports if report["step"] > WARM]
    spent = {kind: sum(report["seconds"][kind] for report in counted) for kind in ("data", "training")}
    return {
        "seconds": task.size.tokens / statistics.median(report["tokens_per_second"] for report in counted),
        "loss": measured["train_loss"],
        "peak_flops": begun["peak_flops"],
        "data": spent["data"] / sum(spent.values()),
    }


def _spec(task: Task, folder: Path) -> TrainSpec:
    """What the stage would tell its child, of inputs that nobody else has made."""
    config, tokenizer = config_of(task), Path(task.tokenizer)
    (folder / "out").mkdir()
    shards = {split: sorted(Path(task.tokens, split).glob("*.tokens")) for split in ("train", "validation")}
    return TrainSpec(
        config=config,
        runtime=runtime_of(task),
        shape=shape_of(task),
        steps=WARM + task.size.steps,
        tokens_digest="",
        tokenizer_digest=tokenizer_digest(tokenizer),
        train=shards["train"],
        validation=shards["validation"],
        tokenizer=tokenizer,
        scratch=folder,
        out=folder / "out",
    )


if __name__ == "__main__":
    end_as_interrupted()
    from benchmarks.pretrain.answer import answer

    answer(run)
