"""The models to train, and the arguments of each side. Only the standard library, since peers import it too."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

LEARNING_RATE, WEIGHT_DECAY, BETAS, CLIP = 3e-3, 0.1, (0.9, 0.95), 1.0
WARM = 5  # steps that are not counted


@dataclass(frozen=True)
class Size:
    """A model with tied embeddings, and its steps: `batch` sequences of `context` tokens, `micro_batch` of them at a
    time."""

    depth: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int  # of LLaMA; GPT-2 has 4 × width
    vocab: int
    context: int
    batch: int
    micro_batch: int
    steps: int  # counted ones

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.context

    @property
    def micro_steps(self) -> int:
        """Micro-batches of a step."""
        return self.batch // self.micro_batch


@dataclass(frozen=True)
class Task:
    """The task of a side, passed as JSON on its command line."""

    side: str
    family: str
    size: Size
    threads: int
    tokens: str  # folder of token shards
    tokenizer: str
    device: str = "cpu"

    @property
    def lower(self) -> bool:
        """Whether products are taken in bfloat16."""
        return self.device == "cuda"

    def to_json(self) -> str:
        """For `from_json` in the other process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """What `to_json` wrote."""
        given = json.loads(text)
        return cls(**{**given, "size": Size(**given["size"])})


def token_files(folder: str) -> list[Path]:
    """The training split's shards."""
    return sorted(Path(folder).glob("train/*.tokens"))
