"""A program of one step that needs only torch: as torch.export traced it, or compiled by AOTInductor.

torch reads either without a check, so the checksums of the archive, which is a zip file, are checked here first. A
compiled program is machine code, which runs when it is opened.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from platform import machine
from typing import Any

import torch

from models.runtimes.kv_cache import PROGRAM, Array, CachedRuntime, past_shape
from models.runtimes.protocol import RuntimeFault

METADATA = ".wrapper_metadata.json"  # of a compiled program: the machine that it was compiled for
INSTRUCTIONS = {  # by AOTInductor's names, torch's
    "AVX2": "avx2",
    "AVX512": "avx512_f",
    "AVX512_VNNI": "avx512_vnni",
    "AMX_TILE": "amx_tile",
    "SVE": "sve",
}


def load_program(path: Path) -> Any:
    """A traced program. Raises RuntimeFault for a file that is missing or damaged."""
    check_archive(path)
    try:
        return torch.export.load(path)
    except (RuntimeError, ValueError, KeyError, TypeError, OSError, AssertionError) as error:
        raise RuntimeFault(f"torch.export can't load {path}: {error}") from error


def check_archive(path: Path) -> None:
    """Raises RuntimeFault for a file that is not a zip archive, or that has a damaged member."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError) as error:
        raise RuntimeFault(f"{path} is not a complete archive: {error}") from error
    if damaged is not None:
        raise RuntimeFault(f"{path} is damaged in {damaged}")


def check_processor(path: Path) -> None:
    """Raises RuntimeFault for a compiled program with instructions that this machine's processor lacks: they would end
    the process."""
    with zipfile.ZipFile(path) as archive:
        files = [name for name in archive.namelist() if name.endswith(METADATA)]
        target: dict[str, str] = json.loads(archive.read(files[0])) if files else {}
    if target.get("AOTI_MACHINE", machine()) != machine():
        raise RuntimeFault(f"{path} is compiled for {target['AOTI_MACHINE']}, and this machine is {machine()}")
    able, needed = torch.cpu.get_capabilities(), target.get("AOTI_CPU_ISA", "").split()
    missing = [name for name in needed if not able.get(INSTRUCTIONS.get(name, ""), True)]
    if missing:
        raise RuntimeFault(f"{path} is compiled for {', '.join(missing)}, which this machine's processor lacks")


class ExportedRuntime(CachedRuntime):
    """The program of a folder. Raises RuntimeFault for one that is missing or damaged.

    It sets torch's number of threads, which applies to the whole process.
    """

    def __init__(self, folder: Path, *, compiled: bool, threads: int = 1) -> None:
        super().__init__(folder)
        self.path, self.compiled = folder / PROGRAM, compiled
        torch.set_num_threads(threads)
        self.run: Any
        if not compiled:
            self.run = load_program(self.path).module()
            return
        check_archive(self.path)
        check_processor(self.path)
        try:
            self.run = torch._inductor.aoti_load_package(str(self.path))
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            raise RuntimeFault(f"AOTInductor can't load {self.path}: {error}") from error

    @torch.no_grad()
    def step(self, inputs: Sequence[Array]) -> list[Array]:
        ids, mask, positions, *past = (torch.from_numpy(each) for each in inputs)
        try:
            logits, present = self.run(ids, mask, positions, past)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            raise RuntimeFault(f"{self.path} can't run: {error}") from error
        layers = past_shape(self.config)[0]
        if len(present) != 2 * layers:
            raise RuntimeFault(f"{self.path} doesn't fit this model: it has {len(present) // 2} layers, not {layers}")
        return [logits.numpy(), *(each.numpy() for each in present)]

    def close(self) -> None:
        del self.run
