"""GGUF, the file format of llama.cpp and its relatives.

kinds.py           the types of a file's matrices, by the kind of file
architecture.py    llama.cpp's name and settings of a model, and which models are refused
tensors.py         tensors under llama.cpp's names and conventions, and back
vocabulary.py      the tokenizer and its chat template
importance.py      how large the inputs of each matrix are
quantize.py        matrices in blocks of few bits
file.py            writes the file
fallback_types.py  which types stand in for others
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.shards.arrays import Float32
from tasks.export.formats.format import GuessedFormat
from tasks.export.formats.gguf.kinds import KINDS, GgufKind
from tasks.export.formats.source import DRAFT, Source
from tasks.export.tolerance import Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime
    from models.runtimes.speculative import Guessing, Speculative

DRAFT_KIND: GgufKind = "q8_0"  # of a draft: an error of half a percent costs fewer guesses than a larger file is worth
_UNWEIGHED = ("f32", "f16", "bf16", "q8_0")  # kinds that an importance matrix doesn't change


def _rounded(value: Any) -> Any:
    """A value as a file stores it, with floats in float32."""
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(np.float32(value)) if isinstance(value, float) else value


@dataclass(frozen=True)
class Gguf(GuessedFormat):
    """One GGUF file of this kind."""

    kind: GgufKind

    @property
    def tolerance(self) -> Tolerance:
        return KINDS[self.kind].tolerance

    @property
    def usual(self) -> bool:
        return KINDS[self.kind].usual

    @property
    def calibrated(self) -> bool:
        return self.kind not in _UNWEIGHED

    @property
    def chat_rank(self) -> int:
        return KINDS[self.kind].chat_rank

    @property
    def loading(self) -> str:
        return f"`llama-cli -m gguf/model-{self.kind}.gguf`"

    def path(self, release: Path) -> Path:
        return release / "gguf" / f"model-{self.kind}.gguf"

    def check(self, model: Path) -> None:
        from models.pretrained import load_config
        from tasks.export.formats.gguf.architecture import architecture_of
        from tasks.export.formats.gguf.tensors import Names
        from tasks.export.formats.gguf.vocabulary import check_vocabulary

        config = load_config(model)
        Names(config, architecture_of(config)).shapes(model)
        check_vocabulary(model)

    def check_range(self, model: Path, dtype: str) -> None:
        from tasks.export.formats.gguf.file import require_range

        require_range(model, self.kind)

    def remark(self, model: Path) -> str | None:
        from models.pretrained import load_config
        from tasks.export.formats.gguf.architecture import architecture_of, layers_of
        from tasks.export.formats.gguf.fallback_types import stand_ins
        from tasks.export.formats.gguf.tensors import Names

        config = load_config(model)
        return stand_ins(Names(config, architecture_of(config)).shapes(model), self.kind, layers_of(config))

    def write(self, source: Source, release: Path) -> None:
        from tasks.export.formats.gguf.file import write_gguf
        from tasks.export.formats.gguf.importance import importance

        self.check(source.folder)
        path = self.path(release)
        path.parent.mkdir(exist_ok=True)
        weighed = importance(source) if self.calibrated else None
        write_gguf(source.folder, path, self.kind, importance=weighed, name=source.name, licence=source.licence)

    def open(self, release: Path, threads: int, device: str = "cpu") -> ModelRuntime:
        from models.runtimes.llama_cpp import LlamaCppRuntime

        return LlamaCppRuntime(self.path(release), threads=threads)

    def draft(self, release: Path) -> Path:
        return Gguf(DRAFT_KIND).path(release / DRAFT)

    def write_draft(self, source: Source, release: Path) -> None:
        Gguf(DRAFT_KIND).write(source, release / DRAFT)

    def speculative(self, release: Path, threads: int, device: str, guessing: Guessing | None) -> Speculative:
        from models.runtimes.speculative import SpeculativeLlamaCpp

        return SpeculativeLlamaCpp(self.path(release), threads=threads, guessing=guessing)

    def settings(self, model: Path, release: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """The file's metadata: shape, vocabulary and template."""
        from gguf import GGUFReader, GGUFWriter

        from models.pretrained import load_config
        from tasks.export.formats.gguf.architecture import architecture_of, write_architecture
        from tasks.export.formats.gguf.vocabulary import write_vocabulary

        config = load_config(model)
        known = architecture_of(config)
        intended = GGUFWriter(None, known.name)
        write_architecture(intended, config, known, config.vocab_size)
        write_vocabulary(intended, model, config.vocab_size)
        fields = GGUFReader(self.path(release)).fields
        expected = {name: _rounded(value.value) for name, value in intended.kv_data[0].items()}
        names = expected.keys() | {name for name in fields if name.startswith("tokenizer.")}
        return {name: _rounded(fields[name].contents()) for name in names if name in fields}, expected

    def weights(self, model: Path, release: Path) -> Iterator[tuple[str, Float32]]:
        from gguf import GGUFReader

        from models.pretrained import load_config
        from tasks.export.formats.gguf.architecture import architecture_of
        from tasks.export.formats.gguf.quantize import dequantize
        from tasks.export.formats.gguf.tensors import Names

        config = load_config(model)
        names = Names(config, architecture_of(config))
        written = {tensor.name: tensor for tensor in GGUFReader(self.path(release)).tensors}
        for theirs, name, _ in names.tensors(model):
            if theirs and name in written:
                values = dequantize(written[name].data, written[name].tensor_type.name)
                each, restored = names.names_of_experts(theirs), names.to_checkpoint(name, values)
                yield from zip(each, restored if len(each) > 1 else [restored], strict=True)
