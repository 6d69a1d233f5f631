"""What is asked of a teacher about a row, and what it answered about those of a batch.

Shapes: N learned tokens of a batch, K likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.kernels.cross_entropy import IGNORED
from storage.errors import DamagedArtifact
from tasks.endpoint.paid import ANSWERS, KnownAnswers
from tasks.endpoint.prompts import Asked, TokenEndpoint, key_of, tokens_of
from tasks.posttrain.rows.form import Row

if TYPE_CHECKING:
    from torch import Tensor


def asked_of(row: Row, name: str = "") -> Asked:
    """A rendered row as it is asked about: its learned tokens. Nothing precedes the first, which is never learned."""
    labels: Sequence[int] = row["labels"]
    return Asked(row["input_ids"], [place for place, id in enumerate(labels) if place and id != IGNORED], name)


class TopTokens:
    """The answers in an artifact of `top_tokens`, by the tokens of a row."""

    def __init__(self, folder: Path, config: TokenEndpoint) -> None:
        self._answers, self._config = KnownAnswers(sorted((folder / ANSWERS).glob("*.jsonl"))), config

    def check(self, rows: Iterable[Row]) -> None:
        """Raises DamagedArtifact for a row that the teacher wasn't asked about."""
        for row in rows:
            self._answer(row)

    def of(self, rows: Iterable[Row], device: Any) -> tuple[Tensor, Tensor]:
        """Ids and log-probabilities (N, K) for the learned tokens of rows, one row after another."""
        import torch

        found = [tokens_of(self._answer(row), self._config.top_k) for row in rows]
        ids, logs = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return torch.from_numpy(ids).long().to(device), torch.from_numpy(logs).to(device)

    def _answer(self, row: Row) -> Mapping[str, Any]:
        answer = self._answers.get(key_of(self._config, asked_of(row)))
        if answer is None:
            raise DamagedArtifact(
                "The teacher's tokens of a row are missing.", "Ask for them again: --refresh top_tokens."
            )
        return answer
