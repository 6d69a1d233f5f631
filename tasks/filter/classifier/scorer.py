"""Scoring with a transformers sequence classifier, after the first model of a cascade, if any.

Pieces are scored in batches of similar length. The batches depend only on the pieces of a row group, and on a CPU one
thread adds up in one order. So the scores don't depend on the number of workers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from models.pretrained import load_classifier, load_config
from storage.shards.arrays import Bool, Float64, Int64
from tasks.base.check import quietly
from tasks.filter.classifier.config import ClassifierConfig
from tasks.filter.classifier.first_model import FIRST, FirstModel
from tasks.filter.classifier.pieces import pieces_of
from tasks.filter.classifier.source import load_tokenizer, longest, sigmoid_of

MODEL, CONFIG = "model", "scorer.json"


class Scores(NamedTuple):
    """The score of each piece, and whether the first model settled it."""

    values: Float64
    settled: Bool


class Cutter:
    """Cuts texts for the classifier in a folder that `signal_model.py` wrote. Loads its tokenizer without its weights.

    Raises ConfigError for settings that it can't honour.
    """

    def __init__(self, folder: Path) -> None:
        self.config = ClassifierConfig.model_validate_json((folder / CONFIG).read_text())
        self.known = load_config(folder / MODEL)
        self.tokenizer = load_tokenizer(folder / MODEL)
        self.limit = longest(self.config.max_tokens, self.config.named, self.known, self.tokenizer)

    def pieces(self, text: str) -> list[str]:
        """The pieces of a text as the config cuts it, none for a text without words."""
        room = self.limit - self.tokenizer.num_special_tokens_to_add()
        return pieces_of(self.tokenizer, text, room, self.config.pieces)


class ClassifierScorer(Cutter):
    """The classifier in a folder that `signal_model.py` wrote, on a device."""

    def __init__(self, folder: Path, device: str) -> None:
        import torch

        super().__init__(folder)
        self.sigmoid = sigmoid_of(self.config, self.known)
        self.column = list(self.known.id2label.values()).index(self.config.label) if self.config.label else 0
        with quietly():
            model: Any = load_classifier(folder / MODEL, dtype=getattr(torch, self.config.precision))
        model.config.pad_token_id = self.tokenizer.pad_token_id
        self.model = model.to(device).eval()
        self.device = device
        self.first = FirstModel(folder / FIRST) if (folder / FIRST).is_dir() else None

    def score(self, texts: pa.Array) -> tuple[Float64, Int64]:
        """For each text the mean score of its pieces, weighted by their characters, and its number of pieces: 0 for a
        text without words, whose score is meaningless."""
        cut = [self.pieces(text) for text in texts.to_pylist()]
        scores = self.score_pieces([piece for pieces in cut for piece in pieces]).values
        rows = np.repeat(np.arange(len(cut)), [len(pieces) for pieces in cut])
        sizes = np.array([len(piece) for pieces in cut for piece in pieces], np.float64)
        total = np.bincount(rows, sizes, len(cut))
        means = np.bincount(rows, sizes * scores, len(cut)) / np.maximum(1, total)
        return means, np.array([len(pieces) for pieces in cut], np.int64)

    def score_pieces(self, pieces: Sequence[str]) -> Scores:
        """The scores of pieces that `pieces` cut. Longer pieces are truncated."""
        values = np.zeros(len(pieces))
        settled = np.zeros(len(pieces), np.bool_)
        if self.first is not None and pieces:
            values, settled = self.first.settle(pieces)
        left = np.flatnonzero(~settled).tolist()
        if left:
            values[left] = self._apply([pieces[place] for place in left])
        return Scores(values, settled)

    def _apply(self, pieces: list[str]) -> Float64:
        import torch

        encoded = self.tokenizer(pieces, truncation=True, max_length=self.limit, return_attention_mask=False)
        ids = encoded["input_ids"]
        scores = np.empty(len(pieces))
        with one_thread(self.device), torch.inference_mode():
            for batch in batches_of(ids, self.config.batch_tokens):
                padded = self.tokenizer.pad({"input_ids": [ids[place] for place in batch]}, return_tensors="pt")
                logits = self.model(**{name: tensor.to(self.device) for name, tensor in padded.items()}).logits
                scores[batch] = self._scores(logits.double()).cpu().numpy()
        return scores

    def _scores(self, logits: Any) -> Any:
        if self.config.output == "value":
            return logits[:, 0]
        chances = logits.sigmoid() if self.sigmoid else logits.softmax(-1)
        if self.config.output == "probability":
            return chances[:, self.column]
        numbers = chances.new_tensor(range(chances.shape[1]))
        return chances @ numbers / chances.sum(-1)


@functools.lru_cache(maxsize=1)
def open_classifier(folder: Path, device: str) -> ClassifierScorer:
    """The classifier of an artifact, loaded once per process."""
    return ClassifierScorer(folder, device)


def is_classifier(folder: Path) -> bool:
    """Whether `open_classifier` can read the model in a folder."""
    return (folder / CONFIG).is_file()


def batches_of(ids: Sequence[Sequence[int]], most: int) -> Iterator[list[int]]:
    """Yield batches of row numbers, the shortest rows first, each of at most `most` tokens with padding."""
    batch: list[int] = []
    for place in sorted(range(len(ids)), key=lambda place: (len(ids[place]), place)):
        if batch and (len(batch) + 1) * len(ids[place]) > most:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


@contextmanager
def one_thread(device: str) -> Iterator[None]:
    """Use one thread on a CPU: workers are processes, and sums are in the same order for any number of them."""
    import torch

    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
