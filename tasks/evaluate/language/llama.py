"""A GGUF file as a scorer: llama.cpp reads each window once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.kernels.cross_entropy import IGNORED
from tasks.evaluate.language.scores import Scores
from tasks.evaluate.other_models.gguf import open_gguf


class LlamaScorer:
    """An open GGUF file, as `Scorer`."""

    dtype = "as in the file"
    device = torch.device("cpu")

    def __init__(self, path: Path, threads: int) -> None:
        self.runtime = open_gguf(path, threads)
        self.vocab_size, self.context = self.runtime.vocab_size, self.runtime.context

    def __call__(self, ids_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, Scores]:
        targets_seen = [
            one
            for ids, targets in zip(ids_BT.tolist(), targets_BT.tolist(), strict=True)
            for one, target in zip(self.runtime.targets([*ids, max(targets[-1], 0)], 1), targets, strict=True)
            if target != IGNORED
        ]
        nats = np.array([-one.log_probability for one in targets_seen], np.float32)
        best = np.exp(np.array([one.best for one in targets_seen], np.float32))
        right = np.array([one.is_best for one in targets_seen])
        return torch.tensor(nats.sum(dtype=np.float64)), Scores(nats, best, right)
