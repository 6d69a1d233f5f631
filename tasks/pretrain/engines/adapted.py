"""Merges the adapter of a run into its base, and proves that both compute the same, as post-training does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.foreign import PREFIX, ForeignDecoder
from models.pretrained import load_pretrained
from storage.shards.token_stream import TokenStream
from tasks.pretrain.config import PretrainLora
from tasks.pretrain.spec import TrainSpec
from tasks.training.adapters.lora import peft_config
from tasks.training.adapters.save import MEASURED_ROWS, Batch, merge, save_adapter
from tasks.training.adapters.whole import modules_to_train
from tasks.training.bits_per_byte import read_windows, spread_windows


def merge_adapter(model: ForeignDecoder, adapter: PretrainLora, spec: TrainSpec, folder: Path) -> dict[str, Any]:
    """Write the adapter to `folder` as PEFT loads it, and make `model` the base with the adapter merged into it, in
    float32. Returns the counts of `merge`, and raises as it does.

    Parts that are trained whole are PEFT's modules_to_save.
    """
    assert spec.base is not None
    modules = modules_to_train("pretrain.adapter.whole", adapter.whole, model, model.head)
    whole = [name.removeprefix(PREFIX) for name in modules]
    state: dict[str, Tensor] = {}
    for name, value in model.theirs.named_parameters(remove_duplicate=False):  # a tied matrix under both of its names
        module, _, last = name.rpartition(".")
        if module in whole:  # copied, as a file of safetensors refuses names that share memory
            state[f"base_model.model.{module}.modules_to_save.default.{last}"] = value.detach().clone()
        else:
            state[f"base_model.model.{name}"] = value.detach()
    model.theirs = None  # its weights are in `state`, and the base is read again
    base = load_pretrained(spec.base)
    settings = peft_config("pretrain", adapter.low_rank, base)
    settings.modules_to_save = whole or None
    save_adapter(settings, state, base, f"sha256:{spec.base_digest}", folder)
    del state, base
    merged, counts = merge("pretrain", load_pretrained(spec.base), folder, _proof_batches(spec))
    model.theirs = merged
    return counts


def _proof_batches(spec: TrainSpec) -> list[Batch]:
    """Some held-out windows, each a batch."""
    stream = TokenStream(spec.validation, tokenizer_digest=spec.tokenizer_digest)
    windows = spread_windows(stream, spec.context, MEASURED_ROWS * spec.context)[:MEASURED_ROWS]
    ids_BT, _ = read_windows(stream, windows, spec.context, len(windows))
    return [{"input_ids": row_T[None], "attention_mask": torch.ones_like(row_T[None])} for row_T in ids_BT]
