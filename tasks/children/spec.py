"""The input of a child process: JSON that the stage writes and the child reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tasks.stage.runtime import Runtime


class ChildSpec(BaseModel):
    """The fields of every child: how to run, where to write, where to resume from. Paths are absolute."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runtime: Runtime
    scratch: Path
    out: Path
    remote: str = ""  # see Output.remote

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints, to resume from."""
        return self.scratch / "checkpoints"

    @property
    def stop(self) -> Path:
        """The file that the stage creates to ask the training to stop."""
        return self.scratch / "stop"

    @property
    def faults(self) -> Path:
        """The folder of names of injected faults that have happened."""
        return self.scratch / "injected-faults"

    @property
    def log(self) -> Path:
        """The log, a row a training step, cut back to the checkpoint's step on resume."""
        return self.scratch / "log.jsonl"

    @property
    def result(self) -> Path:
        """The child's measurements, for the stage."""
        return self.scratch / "result.json"

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result atomically. Call it last: whatever ends the child afterwards, its work is done."""
        written = self.result.with_suffix(".part")
        written.write_text(json.dumps(result))
        written.replace(self.result)
