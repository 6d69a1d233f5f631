"""What the training child is told, and the identity that a resume must match."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from models.presets import ModelShape
from tasks.children.spec import ChildSpec
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.fim_tokens import Marks
from tasks.pretrain.healing.skipped_batches import Course


class TrainSpec(ChildSpec):
    """Written as JSON by the stage, read by every rank."""

    config: PretrainConfig
    shape: ModelShape
    steps: int
    tokens_digest: str
    tokenizer_digest: str
    train: list[Path]
    validation: list[Path]
    tokenizer: Path
    marks: Marks | None = None  # only where fim_rate wants them
    aside: Path | None = None  # see Output.aside
    course: Course = Course()  # of no identity: it only ever changes after the checkpoint that a run goes on from

    @property
    def insight(self) -> Path:
        """Where what is seen of the run lies, which is no part of its artifact."""
        return self.aside or self.scratch / "insight"

    @property
    def drills(self) -> Path:
        """Marks of the faults on purpose that have happened."""
        return self.scratch / "drills"

    @property
    def snapshots(self) -> Path:
        """Where snapshots wait until the artifact is made of them."""
        return self.scratch / "snapshots"

    @property
    def snapshot_steps(self) -> range:
        """The steps that leave a snapshot; the last one leaves the model itself."""
        every = self.config.snapshot_every
        return range(every, self.steps, every) if every else range(0)

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
