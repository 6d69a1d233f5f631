"""Formats of a release, one file each. A new one is a file here and a row of FORMATS, and nothing else."""

from __future__ import annotations

from tasks.export.formats.bitsandbytes import Bitsandbytes
from tasks.export.formats.format import Format
from tasks.export.formats.gguf import Gguf
from tasks.export.formats.safetensors import Safetensors

FORMATS: dict[str, Format] = {
    "safetensors": Safetensors(),
    "int8": Bitsandbytes(8),
    "int4": Bitsandbytes(4),
    "gguf-f32": Gguf("f32"),
    "gguf-f16": Gguf("f16"),
    "gguf-q8_0": Gguf("q8_0"),
    "gguf-q4_0": Gguf("q4_0"),
}
