"""The adapter as a GGUF file, which llama.cpp loads over a GGUF file of the base of any type.

llama.cpp adds alpha / rank · B·A to its own matrices. If it reorders the rows of a matrix, the rows of B are reordered
alike. It takes the chat template from the base's file, which may have another one or none, so the adapter's own is
written next to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from storage.shards.arrays import Float32
from tasks.export.formats.adapter.folder import OverBase, hub_name
from tasks.export.formats.source import Adapted, Source
from tasks.export.tolerance import HALF, Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime
    from tasks.export.formats.gguf.tensors import Names

FILE, TEMPLATE = "adapter.gguf", "chat_template.jinja"
_A, _B = ".lora_a", ".lora_b"  # after the name of the matrix
HUB = "https://huggingface.co"


@dataclass(frozen=True)
class GgufAdapter(OverBase):
    """A GGUF file with the factors in float32, and the chat template."""

    tolerance: Tolerance = HALF
    loading: str = (
        f"`llama-cli -m BASE.gguf --lora gguf-adapter/{FILE} --jinja --chat-template-file gguf-adapter/{TEMPLATE}`"
    )

    def path(self, release: Path) -> Path:
        return release / "gguf-adapter"

    def check(self, model: Path) -> None:
        from tasks.export.formats.gguf.vocabulary import check_vocabulary

        _names(model).shapes(model)
        check_vocabulary(model)

    def write(self, source: Source, release: Path) -> None:
        """Also writes the base as a GGUF file for the proof, into its scratch folder, not into the release."""
        from tasks.export.formats.gguf.file import write_gguf
        from tasks.export.formats.gguf.vocabulary import plain_template

        self.check(source.folder)
        adapted, folder = self.given(source), self.path(release)
        folder.mkdir()
        _write(source, adapted, _names(source.folder), folder / FILE)
        (folder / TEMPLATE).write_text(plain_template(source.folder), encoding="utf-8")
        write_gguf(adapted.base, _base_file(adapted), "f32")

    def open(self, release: Path, threads: int, device: str = "cpu") -> ModelRuntime:
        from models.runtimes.llama_cpp import LlamaCppRuntime

        folder, base = self.path(release), _base_file(self.opened_over)
        return LlamaCppRuntime(base, threads=threads, adapter=folder / FILE, template=folder / TEMPLATE)

    def weights(self, model: Path, release: Path) -> Iterator[tuple[str, Float32]]:
        """The base's tensors with the changes added."""
        from gguf import GGUFReader, Keys

        from tasks.export.formats.adapter.factors import LowRank, base_matrices

        names, read = _names(model), GGUFReader(self.path(release) / FILE)
        tensors = {tensor.name: np.asarray(tensor.data) for tensor in read.tensors}
        alpha = float(read.fields[Keys.Adapter.LORA_ALPHA].contents())
        theirs = {name.removesuffix(_A) for name in tensors if name.endswith(_A)}
        for name, _, values in base_matrices(self.opened_over.base, LowRank(1.0, {})):
            matrix = names.name_of(name)
            if matrix not in theirs:
                yield name, values
                continue
            theirs.remove(matrix)
            a, b = tensors[matrix + _A], tensors[matrix + _B]
            changed = names.to_llama(matrix, values) + np.float32(alpha / a.shape[0]) * (b @ a)
            yield name, names.to_checkpoint(matrix, changed)


def _base_file(adapted: Adapted) -> Path:
    return adapted.scratch / "base.gguf"


def _names(model: Path) -> Names:
    from models.pretrained import load_config
    from tasks.export.formats.gguf.architecture import architecture_of
    from tasks.export.formats.gguf.tensors import Names

    config = load_config(model)
    return Names(config, architecture_of(config))


def _write(source: Source, adapted: Adapted, names: Names, path: Path) -> None:
    from gguf import GGUFWriter, Keys

    from tasks.export.formats.adapter.factors import joined, read_factors

    factors = joined([read_factors(one) for one in adapted.adapters])
    writer = GGUFWriter(path, names.known.name)
    writer.add_type("adapter")
    writer.add_string(Keys.Adapter.TYPE, "lora")
    writer.add_float32(Keys.Adapter.LORA_ALPHA, factors.scale * factors.rank)
    if source.name:
        writer.add_name(source.name)
    if source.licence:
        writer.add_license(source.licence)
    base, revision = hub_name(adapted.name)
    writer.add_base_model_count(1)
    writer.add_base_model_name(0, base)
    if revision is not None:
        writer.add_base_model_version(0, revision)
        writer.add_base_model_repo_url(0, f"{HUB}/{base}")
    for layer, (a, b) in factors.layers.items():
        matrix = names.name_of(f"{layer}.weight")
        writer.add_tensor(matrix + _A, np.ascontiguousarray(a))
        writer.add_tensor(matrix + _B, np.ascontiguousarray(names.rows_to_llama(matrix, b)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
