"""The pre-flight checks without a training, on existing token shards or on synthetic ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from models.presets import derive
from storage.shards.tokens import read_header, write_tokens
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.fim_tokens import default_fim_tokens
from tasks.pretrain.preflight import Line, preflight
from tasks.pretrain.spec import TrainSpec
from tasks.stage.output import Output

SYNTHETIC_WINDOWS = 64  # of training tokens


def check_standalone(
    config: PretrainConfig, out: Output, *, tokens: Path | None, vocab_size: int, on_check: Callable[[Line], None]
) -> list[Line]:
    """The checks of a run of `config` on the shards in `tokens`, or on synthetic ones of `vocab_size` ids.

    Disk space is measured where `out` is. Raises DamagedArtifact for a shard without a header.
    """
    if tokens is None:
        tokens = synthetic_tokens(out.scratch / "tokens", config, vocab_size)
    train, validation = (sorted((tokens / split).glob("*.tokens")) for split in ("train", "validation"))
    header = read_header(train[0])
    shape = derive(config.new_model, header.vocab_size)
    spec = TrainSpec(
        config=config,
        runtime=out.runtime,
        shape=shape,
        steps=config.total_steps(shape),
        tokens_digest="",
        tokenizer_digest=header.tokenizer_digest,
        train=[path.resolve() for path in train],
        validation=[path.resolve() for path in validation],
        tokenizer=tokens.resolve(),
        fim_tokens=default_fim_tokens() if config.fim_rate else None,
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )
    return preflight(spec, out, on_check)


def synthetic_tokens(folder: Path, config: PretrainConfig, vocab_size: int) -> Path:
    """Write shards of random ids in Zipf's distribution, like words'. A document ends about every 100 tokens."""
    rng = np.random.default_rng(0)
    windows = max(SYNTHETIC_WINDOWS, 2 * config.global_batch)
    for split, share in (("train", 1.0), ("validation", 0.1)):
        count = int(windows * share * config.new_model.context) + config.new_model.context + 1
        ids = (rng.zipf(1.2, count) % vocab_size).astype(np.uint32)
        ids[::100] = 0
        documents = np.split(ids, range(101, count, 100))
        write_tokens(
            folder / split / "00000.tokens",
            documents,
            vocab_size=vocab_size,
            eos_id=0,
            tokenizer_digest="0" * 64,
            text_bytes=4 * count,
        )
    return folder
