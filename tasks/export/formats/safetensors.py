"""Plain safetensors in float32, for transformers: the master copy of the release."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.export.formats.format import Format
from tasks.export.tolerance import EXACT, Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime


@dataclass(frozen=True)
class Safetensors(Format):
    """The checkpoint's own files."""

    tolerance: Tolerance = EXACT
    usual: bool = True
    chat_rank: int = 4
    loading: str = '`AutoModelForCausalLM.from_pretrained("safetensors")`'

    def path(self, release: Path) -> Path:
        return release / "safetensors"

    def check(self, model: Path) -> None:
        """It holds any."""

    def write(self, model: Path, release: Path) -> None:
        shutil.copytree(model, self.path(release))

    def open(self, release: Path, threads: int) -> ModelRuntime:
        from models.runtimes.transformers import TransformersRuntime

        return TransformersRuntime(self.path(release))
