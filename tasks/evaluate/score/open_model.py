"""Opens a model for the harness: a folder of transformers, a GGUF file, or an endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from models.pretrained import open_pretrained
from models.tokenizer import load_tokenizer
from tasks.evaluate.other_models.gguf import gguf_in, open_gguf
from tasks.evaluate.other_models.hosted_model import endpoint_in
from tasks.evaluate.score.config import ScoreConfig
from tasks.stage.runtime import Runtime

if TYPE_CHECKING:
    from lm_eval.api.model import LM

PAID = "answers.jsonl"


def open_model(folder: Path, config: ScoreConfig, runtime: Runtime, device: torch.device, scratch: Path) -> LM:
    """Open the model of a folder for `config`. Answers of an endpoint are kept in `scratch`. Raises ConfigError for a
    GGUF file that llama.cpp can't load."""
    endpoint = endpoint_in(folder)
    if endpoint is not None:
        from tasks.evaluate.score.hosted_model import HostedModel

        return HostedModel(endpoint, runtime.endpoint, scratch / PAID, config.seed)
    gguf = gguf_in(folder)
    if gguf is not None:
        from tasks.evaluate.score.llama import LlamaModel

        return LlamaModel(open_gguf(gguf, runtime.compute.cpu_threads()), load_tokenizer(folder), config.seed)
    from tasks.evaluate.score.model import PackedModel

    model = open_pretrained(folder, device, dtype=getattr(torch, config.dtype))
    return PackedModel(model, load_tokenizer(folder), config.batch_size)


def has_template(model: Any) -> bool:
    """Whether the model can be asked through a chat template. An endpoint's is the server's."""
    tokenizer = getattr(model, "tokenizer", None)
    return tokenizer is None or bool(tokenizer.chat_template)
