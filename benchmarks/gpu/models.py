"""The base model of the sections generation and posttrain: a shape of 135M parameters with weights drawn at random."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.gpu.sizes import TINY_VOCAB, VOCAB
from benchmarks.gpu.tokens import is_whole, seal
from models.config import ModelConfig
from models.presets import derive

SHAPE = {"depth": 30, "width": 576, "heads": 9, "kv_heads": 3, "feed_forward": 1536, "context": 1024}  # SmolLM2's 135M
TINY_SHAPE = {"depth": 2, "width": 64, "heads": 4, "kv_heads": 2, "feed_forward": 192, "context": 256}


def base_model(data: str, tokenizer: str, *, tiny: bool) -> Path:
    """The folder of the model, with the tokenizer of the shards; made on the first call, in the shared process."""
    vocab = TINY_VOCAB if tiny else VOCAB
    folder = Path(data) / f"model-{vocab}"
    if not is_whole(folder):
        from models.convert import save
        from models.transformer import Transformer

        model = Transformer(derive(ModelConfig.model_validate(TINY_SHAPE if tiny else SHAPE), vocab))
        shutil.rmtree(folder, ignore_errors=True)
        save(model, folder, Path(tokenizer))
        seal(folder)
    return folder
