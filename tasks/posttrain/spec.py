"""What the child of a post-training stage is told."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from tasks.children.spec import ChildSpec
from tasks.posttrain.methods.dpo import DpoConfig
from tasks.posttrain.methods.sft import SftConfig


class PosttrainSpec(ChildSpec):
    """Written as JSON by the stage, read by every rank."""

    method: Literal["sft", "dpo"]
    config: SftConfig | DpoConfig
    model: Path
    model_digest: str
    rows: list[Path]
    rows_digest: str

    @property
    def identity(self) -> str:
        """SHA-256 over all that decides the weights: a checkpoint of another is refused."""
        config = self.config.model_dump_json()
        return hashlib.sha256(f"{self.method} {config} {self.model_digest} {self.rows_digest}".encode()).hexdigest()
