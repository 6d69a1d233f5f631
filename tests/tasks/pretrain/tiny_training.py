"""A training small enough for a test: its inputs, its output, a spec for this process, and a world of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from models.presets import derive
from models.tokenizer import tokenizer_digest
from storage.artifact import Artifact
from storage.shards.token_sources import write_sources
from tasks.pretrain import PretrainConfig
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World, join
from tasks.stage.output import Output
from tasks.training.logs import read_log
from tests.runtimes import runtime_of
from tests.tasks.tiny_model import make_tokenizer, make_validation

MODEL = {"family": "llama", "depth": 2, "width": 64, "heads": 4, "kv_heads": 2, "context": 32}
VOCABULARY = 600
CONFIG = PretrainConfig.model_validate(
    {"model": MODEL, "steps": 12, "global_batch": 8, "warmup_steps": 2, "validation_every": 5, "sample_tokens": 4}
)
RUNTIME = runtime_of(workers=1, threads=1, device="cpu", engine="ddp", preflight="never")


@contextmanager
def alone(device: str = "cpu") -> Iterator[World]:
    """A world of one process. Afterwards it is removed together with its variables in the environment."""
    environment, threads, linear = dict(os.environ), torch.get_num_threads(), F.linear
    world = join(runtime_of(RUNTIME, device=device))
    try:
        yield world
    finally:
        world.leave()
        torch.set_num_threads(threads)
        F.linear = linear  # DeepSpeed's ZeRO 3 replaces it
        os.environ.clear()
        os.environ.update(environment)


def make_data(folder: Path) -> tuple[Artifact, Artifact]:
    """Token shards to train on, of two sources in turn, and to validate on; and their tokenizer. Made once."""
    tokenizer = make_tokenizer(folder / "tokenizer")
    train, validation = folder / "tokens" / "train", folder / "tokens" / "validation"
    if not validation.exists():
        make_validation(train, tokenizer, 60)
        for path in sorted(train.glob("*.tokens")):
            write_sources(path.with_suffix(".sources"), ["even", "odd"] * 15)
        make_validation(validation, tokenizer, 12)
    return Artifact.at(folder / "tokens"), Artifact.at(tokenizer)


def output(folder: Path, **runtime: Any) -> Output:
    """The output of `pretrain`, with checkpoints often enough for a run of a few steps."""
    settings = {"threads": 1, "device": "cpu", "checkpoint_every": 3, "log_every": 1, **runtime}
    return Output.at(folder, stage="pretrain", runtime=runtime_of(**settings))


def losses_of(out: Output) -> list[float]:
    """The loss of each step of a run."""
    return [row["loss"] for row in read_log(out.path / "log.jsonl")]


def make_spec(folder: Path, *, runtime: dict[str, Any] | None = None, **config: Any) -> TrainSpec:
    """The spec of a training in `folder`, whose data is made once."""
    tokens, tokenizer = make_data(folder)
    settings = {"model": MODEL, "steps": 12, "global_batch": 4, "warmup_steps": 2, "sample_tokens": 4, **config}
    chosen = PretrainConfig.model_validate(settings)
    shape = derive(chosen.new_model, VOCABULARY)
    return TrainSpec(
        config=chosen,
        runtime=runtime_of(RUNTIME, **(runtime or {})),
        shape=shape,
        steps=chosen.total_steps(shape),
        tokens_digest="tokens",
        tokenizer_digest=tokenizer_digest(tokenizer.path),
        train=tokens.files("train/*.tokens"),
        validation=tokens.files("validation/*.tokens"),
        tokenizer=tokenizer.path,
        scratch=folder / "scratch",
        out=folder / "out",
    )
