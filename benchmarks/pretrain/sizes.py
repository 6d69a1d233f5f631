"""The models to train, and the arguments of each side. Only the standard library, since peers import it too."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

VOCAB, CONTEXT, BATCH = 4096, 256, 8
LEARNING_RATE, WEIGHT_DECAY, BETAS, CLIP = 3e-3, 0.1, (0.9, 0.95), 1.0
WARM = 5  # steps that are not counted


@dataclass(frozen=True)
class Size:
    """A model with tied embeddings; `steps` take about ten seconds."""

    depth: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    steps: int


SIZES = {
    "1.3M": Size(4, 128, 4, 2, 384, 60),
    "5M": Size(5, 256, 8, 4, 768, 25),
    "16M": Size(9, 384, 6, 2, 1024, 12),
}


@dataclass(frozen=True)
class Task:
    """The task of a side, passed as JSON on its command line."""

    side: str
    family: str
    size: str
    threads: int
    tokens: str  # folder of token shards
    tokenizer: str

    @property
    def shape(self) -> Size:
        """The size of the model."""
        return SIZES[self.size]

    def to_json(self) -> str:
        """For `from_arguments` in the other process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_arguments(cls) -> Task:
        """The task of this process."""
        return cls(**json.loads(sys.argv[1]))


def token_files(folder: str) -> list[Path]:
    """The training split's shards."""
    return sorted(Path(folder).glob("train/*.tokens"))
