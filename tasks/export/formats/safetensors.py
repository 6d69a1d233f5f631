"""Plain safetensors, for transformers and all programs that read its folders: the master copy of the release.

They are in the release itself, not in a subfolder, so that it is a model folder as on a hub and `from_pretrained` loads
it as it is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from models.kernels.virtual_tokens import FIELD, FOLDER, SETTINGS, WEIGHTS
from models.pretrained import INDEX, stored_weights
from models.tokenizer import TOKENIZER_FILES
from storage.shards.arrays import Float32
from tasks.export.formats.config import write_config
from tasks.export.formats.format import GuessedFormat
from tasks.export.formats.source import DRAFT, Source
from tasks.export.formats.tokenizer import write_tokenizer
from tasks.export.formats.weights import require_range, write_weights
from tasks.export.tolerance import BFLOAT16, EXACT, FLOAT16, Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime
    from models.runtimes.speculative import Guessing, Speculative

FILE_BYTES = 5_000_000_000  # an interrupted upload or download starts again at a file
GENERATION = "generation_config.json"
_TOLERANCES = {"float32": EXACT, "bfloat16": BFLOAT16, "float16": FLOAT16}


@dataclass(frozen=True)
class Safetensors(GuessedFormat):
    """The checkpoint's weights, in the dtype of the release."""

    tolerance: Tolerance = EXACT
    usual: bool = True
    chat_rank: int = 4
    loading: str = '`AutoModelForCausalLM.from_pretrained(".")`, as it is the release itself'
    file_bytes: int = FILE_BYTES

    def path(self, release: Path) -> Path:
        return release

    def tolerance_of(self, dtype: str) -> Tolerance:
        return _TOLERANCES[dtype]

    def files(self, release: Path) -> list[Path]:
        weights = list(release.glob("model*.safetensors"))
        beside = [f"{FOLDER}/{name}" for name in (SETTINGS, WEIGHTS)] if _virtual(release) else []
        others = [release / name for name in (INDEX, "config.json", GENERATION, *TOKENIZER_FILES, *beside)]
        return sorted([*weights, *(path for path in others if path.is_file())]) if weights else []

    def check(self, model: Path) -> None:
        """Holds any model."""

    def write(self, source: Source, release: Path) -> None:
        write_weights(source.folder, release, source.dtype, self.file_bytes)
        config = json.loads((source.folder / "config.json").read_text(encoding="utf-8"))
        write_config(release, {**config, "dtype": source.dtype})
        if (source.folder / GENERATION).is_file():
            shutil.copyfile(source.folder / GENERATION, release / GENERATION)
        write_tokenizer(source.folder, release)
        if _virtual(source.folder):
            shutil.copytree(source.folder / FOLDER, release / FOLDER)

    def remark(self, model: Path) -> str | None:
        tokens = _virtual(model)
        return f"the base, over which PEFT loads the {tokens:,} virtual tokens of {FOLDER}/" if tokens else None

    def check_range(self, model: Path, dtype: str) -> None:
        if dtype != "auto":
            require_range(model, dtype)

    def open(self, release: Path, threads: int, device: str = "cpu") -> ModelRuntime:
        """Opens it in float32, whatever its dtype: many CPUs multiply bfloat16 a hundred times more slowly."""
        from models.runtimes.transformers import TransformersRuntime

        return TransformersRuntime(release, device)

    def draft(self, release: Path) -> Path:
        return release / DRAFT

    def write_draft(self, source: Source, release: Path) -> None:
        self.write(source, self.draft(release))

    def speculative(self, release: Path, threads: int, device: str, guessing: Guessing | None) -> Speculative:
        from models.runtimes.speculative import SpeculativeTransformers

        return SpeculativeTransformers(release, device, guessing)

    def weights(self, model: Path, release: Path) -> Iterator[tuple[str, Float32]]:
        return stored_weights(release)


def _virtual(folder: Path) -> int:
    """The number of virtual tokens beside the model of a folder."""
    config = folder / "config.json"
    return json.loads(config.read_text(encoding="utf-8")).get(FIELD, 0) if config.is_file() else 0
