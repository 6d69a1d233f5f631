"""A training small enough for a test, in this process: a spec over real token shards, and a world of one."""

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
from tasks.config import Runtime
from tasks.pretrain import PretrainConfig
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World, join
from tests.tasks.tiny_model import make_tokenizer, make_validation

MODEL = {"family": "llama", "depth": 2, "width": 64, "heads": 4, "kv_heads": 2, "context": 32}
VOCABULARY = 600
RUNTIME = Runtime(workers=1, threads=1, device="cpu", engine="ddp", preflight="never")


@contextmanager
def alone() -> Iterator[World]:
    """A world of one process in this one, gone afterwards with what it left in the environment."""
    environment, threads, linear = dict(os.environ), torch.get_num_threads(), F.linear
    world = join(RUNTIME)
    try:
        yield world
    finally:
        world.leave()
        torch.set_num_threads(threads)
        F.linear = linear  # DeepSpeed's ZeRO 3 leaves its own in its place
        os.environ.clear()
        os.environ.update(environment)


def make_spec(folder: Path, *, runtime: dict[str, Any] | None = None, **config: Any) -> TrainSpec:
    """The spec of a training in `folder`, whose data is made once."""
    tokenizer = make_tokenizer(folder / "tokenizer")
    train, validation = folder / "tokens" / "train", folder / "tokens" / "validation"
    if not train.exists():
        make_validation(train, tokenizer, 60)
        make_validation(validation, tokenizer, 12)
    settings = {"model": MODEL, "steps": 12, "global_batch": 4, "warmup_steps": 2, "sample_tokens": 4, **config}
    chosen = PretrainConfig.model_validate(settings)
    shape = derive(chosen.model, VOCABULARY)
    return TrainSpec(
        config=chosen,
        runtime=RUNTIME.model_copy(update=runtime or {}),
        shape=shape,
        steps=chosen.total_steps(shape),
        tokens_digest="tokens",
        tokenizer_digest=tokenizer_digest(tokenizer),
        train=sorted(train.glob("*.tokens")),
        validation=sorted(validation.glob("*.tokens")),
        tokenizer=tokenizer,
        scratch=folder / "scratch",
        out=folder / "out",
    )
