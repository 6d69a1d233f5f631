"""The input of the training child, and the identity that a resume must match."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from models.presets import ModelShape
from tasks.children.spec import ChildSpec
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.fim_tokens import FimTokens
from tasks.pretrain.healing.skipped_batches import BatchSchedule


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
    fim_tokens: FimTokens | None = None  # set if fim_rate is
    aside: Path | None = None  # see Output.aside
    # Not part of the identity: it changes only steps after the checkpoint that a run resumes from
    batch_schedule: BatchSchedule = BatchSchedule()

    @property
    def insight(self) -> Path:
        """The folder of speeds and layer statistics, which are not part of the artifact."""
        return self.aside or self.scratch / "insight"

    @property
    def snapshots(self) -> Path:
        """The folder of snapshots until they are published in the artifact."""
        return self.scratch / "snapshots"

    @property
    def snapshot_steps(self) -> range:
        """The steps with a snapshot. The last step has the model itself."""
        every = self.config.snapshot_every
        return range(every, self.steps, every) if every else range(0)

    @property
    def identity(self) -> str:
        """SHA-256 over everything that decides the weights, without paths and runtime. A resume refuses checkpoints of
        another identity."""
        decides = {
            "config": self.config.model_dump(mode="json"),
            "shape": asdict(self.shape),
            "tokens": self.tokens_digest,
            "tokenizer": self.tokenizer_digest,
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
