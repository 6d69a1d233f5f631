"""What a child process is told: JSON that the stage writes and the child reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tasks.stage.runtime import Runtime


class ChildSpec(BaseModel):
    """Of every child: how to run, where to write, where a resume waits. Paths are absolute."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runtime: Runtime
    scratch: Path
    out: Path
    remote: str = ""  # see Output.remote

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints wait for a resume."""
        return self.scratch / "checkpoints"

    @property
    def stop(self) -> Path:
        """Made by the stage when the training is to stop."""
        return self.scratch / "stop"

    @property
    def faults(self) -> Path:
        """Names of the injected faults that have happened."""
        return self.scratch / "injected-faults"

    @property
    def log(self) -> Path:
        """A row a training step, cut back to the checkpoint's step on resume."""
        return self.scratch / "log.jsonl"

    @property
    def result(self) -> Path:
        """What the child measured, for the stage."""
        return self.scratch / "result.json"

    def finish(self, result: Mapping[str, Any]) -> None:
        """Leave the result, whole or not at all. It is the last thing that a child does: whatever ends it from then on,
        its work is done."""
        written = self.result.with_suffix(".part")
        written.write_text(json.dumps(result))
        written.replace(self.result)
