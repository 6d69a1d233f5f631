"""A model of transformers that embeds, small enough for a test: a BERT with one layer, random but for its seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tasks.filter.tiny_classifier import LENGTH, word_tokenizer


def save_encoder(folder: Path, *, seed: int = 1, pooler: bool = False) -> Path:
    """Without `pooler`, as most embedding models are published: a mean needs none."""
    import torch
    from transformers import BertConfig, BertModel

    tokenizer = word_tokenizer()
    torch.manual_seed(seed)
    model: Any = BertModel(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            initializer_range=0.2,
            pad_token_id=0,
            max_position_embeddings=LENGTH,
        ),
        add_pooling_layer=pooler,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
