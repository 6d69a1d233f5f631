"""Programs for torch without transformers: the step as torch.export traces it, and compiled by AOTInductor.

Both take any number of sequences, new tokens and past tokens. A traced program runs wherever its version of torch or a
newer one does. A compiled program holds machine code for processors with this one's vector instructions, calls this
version of torch, and needs neither Python nor the model's code: a C++ program can open it too.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.runtimes.kv_cache import PROGRAM
from storage.shards.arrays import Float32
from tasks.export.formats.graphs.graph import GraphFormat, copy_companions
from tasks.export.formats.source import Source
from tasks.export.tolerance import FLOAT_GRAPH, Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime

COMPILERS = ("g++", "clang++")


@dataclass(frozen=True)
class Exported(GraphFormat):
    """The step as a program of torch, in float32."""

    compiled: bool
    tolerance: Tolerance = FLOAT_GRAPH

    @property
    def folder(self) -> str:
        return "aoti" if self.compiled else "pt2"

    @property
    def chat_rank(self) -> int:
        return 9 if self.compiled else 10

    @property
    def loading(self) -> str:
        if self.compiled:
            return f'`torch._inductor.aoti_load_package("aoti/{PROGRAM}")`, on a processor of the kind that made it'
        return f'`torch.export.load("pt2/{PROGRAM}").module()`'

    def needs(self) -> str | None:
        if not self.compiled or any(shutil.which(name) for name in COMPILERS):
            return None
        return "a C++ compiler is not on the PATH: install g++."

    def write(self, source: Source, release: Path) -> None:
        import torch

        from tasks.export.formats.graphs.decoder import trace

        self.check(source.folder)
        folder = self.path(release)
        copy_companions(source.folder, folder)
        program = trace(source.folder)
        if not self.compiled:
            torch.export.save(program, folder / PROGRAM)
            return
        from torch._inductor.utils import fresh_cache

        # Otherwise it keeps this machine's number of threads, and needs more instructions than it declares
        settings: dict[str, Any] = {"cpp.dynamic_threads": True, "cpp.march": ""}
        with fresh_cache(dir=str(folder)):  # in the folder, as it holds a copy of the weights
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(folder / PROGRAM), inductor_configs=settings
            )

    def open(self, release: Path, threads: int, device: str = "cpu") -> ModelRuntime:
        from models.runtimes.torch_export import ExportedRuntime

        return ExportedRuntime(self.path(release), compiled=self.compiled, threads=threads)

    def weights(self, model: Path, release: Path) -> Iterator[tuple[str, Float32]]:
        """Nothing for a compiled program, whose weights are laid out for its machine code."""
        from models.runtimes.torch_export import load_program
        from tasks.export.formats.graphs.decoder import PREFIX

        if self.compiled:
            return
        for name, value in load_program(self.path(release) / PROGRAM).state_dict.items():
            if value.ndim == 2:
                yield name.removeprefix(PREFIX), value.detach().numpy().astype(np.float32, copy=False)
