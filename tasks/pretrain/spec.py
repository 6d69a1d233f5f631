"""What the training child is told, and the identity that a resume must match."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from models.presets import ModelShape
from tasks.config import Runtime
from tasks.pretrain.config import PretrainConfig


class TrainSpec(BaseModel):
    """Written as JSON by the stage, read by every rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: PretrainConfig
    runtime: Runtime
    shape: ModelShape
    steps: int
    tokens_digest: str
    tokenizer_digest: str
    train: list[Path]
    validation: list[Path]
    tokenizer: Path
    scratch: Path
    out: Path

    @property
    def identity(self) -> str:
        """SHA-256 over all that decides the weights, paths and runtime left out: a checkpoint of another is refused."""
        decides = {
            "config": self.config.model_dump(mode="json"),
            "shape": asdict(self.shape),
            "tokens": self.tokens_digest,
            "tokenizer": self.tokenizer_digest,
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints wait for a resume."""
        return self.scratch / "checkpoints"

    @property
    def log(self) -> Path:
        """A row a step, cut back to the checkpoint's step on resume."""
        return self.scratch / "log.jsonl"

    @property
    def result(self) -> Path:
        """What the child measured, for the stage."""
        return self.scratch / "result.json"
