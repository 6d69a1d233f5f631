"""Texts to embeddings: the mean of a model's last hidden states over a text's tokens, of length 1, in float16.

As in the scorer of classifiers, a batch depends only on the row group, and on a CPU one thread computes. So the
embeddings don't depend on the number of workers.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from models.pretrained import load_encoder
from storage.shards.arrays import Int64
from tasks.base.check import quietly
from tasks.filter.classifier.pieces import CHARACTERS, WORD
from tasks.filter.classifier.scorer import batches_of, one_thread
from tasks.filter.classifier.source import load_tokenizer, longest
from tasks.filter.semantic.config import EmbeddingsConfig

Float16 = npt.NDArray[np.float16]


class Encoder:
    """The model in a folder, on a device. Raises ConfigError for more tokens than it can read."""

    def __init__(self, config: EmbeddingsConfig, folder: Path, device: str) -> None:
        import torch

        self.config = config
        self.device = device
        self.tokenizer = load_tokenizer(folder, "encoder")
        with quietly():
            model: Any = load_encoder(folder, dtype=getattr(torch, config.precision))
        self.model = model.to(device).eval()
        self.limit = longest(config.max_tokens, config.encoder.named, model.config, self.tokenizer)
        self.width = int(model.config.hidden_size)

    def embed(self, texts: pa.Array) -> tuple[Float16, Int64]:
        """The embedding of each of D texts (D, width), and the number of tokens read: 0 for a text without words, whose
        embedding is 0."""
        import torch

        vectors = np.zeros((len(texts), self.width), np.float16)
        read = np.zeros(len(texts), np.int64)
        parts = [text[:CHARACTERS] for text in texts.to_pylist()]
        rows = [row for row, text in enumerate(parts) if WORD.search(text)]
        if not rows:
            return vectors, read
        encoded = self.tokenizer(
            [parts[row] for row in rows], truncation=True, max_length=self.limit, return_attention_mask=False
        )
        ids = encoded["input_ids"]
        read[rows] = [len(one) for one in ids]
        with one_thread(self.device), torch.inference_mode():
            for batch in batches_of(ids, self.config.batch_tokens):
                padded = self.tokenizer.pad({"input_ids": [ids[place] for place in batch]}, return_tensors="pt")
                inputs = {name: tensor.to(self.device) for name, tensor in padded.items()}
                hidden_BTC = self.model(**inputs).last_hidden_state.float()
                real_BT1 = inputs["attention_mask"].unsqueeze(-1).float()
                means_BC = (hidden_BTC * real_BT1).sum(1) / real_BT1.sum(1)
                vectors[[rows[place] for place in batch]] = torch.nn.functional.normalize(means_BC).cpu().numpy()
        return vectors, read


@functools.lru_cache(maxsize=1)
def open_encoder(config_json: str, folder: Path, device: str) -> Encoder:
    """The encoder, loaded once per process."""
    return Encoder(EmbeddingsConfig.model_validate_json(config_json), folder, device)
