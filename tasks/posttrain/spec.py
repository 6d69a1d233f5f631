"""What the child of a post-training stage is told."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.config import Runtime
from tasks.dpo import DpoConfig
from tasks.sft import SftConfig


class PosttrainSpec(BaseModel):
    """Written as JSON by the stage, read by every rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["sft", "dpo"]
    config: SftConfig | DpoConfig
    runtime: Runtime
    model: Path
    model_digest: str
    rows: list[Path]
    rows_digest: str
    scratch: Path
    out: Path

    @property
    def identity(self) -> str:
        """SHA-256 over all that decides the weights: a checkpoint of another is refused."""
        config = self.config.model_dump_json()
        return hashlib.sha256(f"{self.method} {config} {self.model_digest} {self.rows_digest}".encode()).hexdigest()

    @property
    def checkpoints(self) -> Path:
        """Where the trainer's checkpoints wait for a resume."""
        return self.scratch / "checkpoints"

    @property
    def log(self) -> Path:
        """A row a step, cut back to the checkpoint's step on resume."""
        return self.scratch / "log.jsonl"

    @property
    def result(self) -> Path:
        """What the child measured, for the stage."""
        return self.scratch / "result.json"
