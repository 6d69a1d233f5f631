"""Formats of a release, one file each. To add one, add a file here and a row to FORMATS."""

from __future__ import annotations

from tasks.export.formats.adapter import Adapter, GgufAdapter
from tasks.export.formats.bitsandbytes import Bitsandbytes
from tasks.export.formats.compressed import Compressed
from tasks.export.formats.format import Format, GuessedFormat
from tasks.export.formats.gguf import Gguf
from tasks.export.formats.gguf.kinds import KINDS
from tasks.export.formats.graphs.exported import Exported
from tasks.export.formats.graphs.onnx import Onnx
from tasks.export.formats.safetensors import Safetensors
from tasks.export.formats.torchao import TorchAo

FORMATS: dict[str, Format] = {
    "safetensors": Safetensors(),
    "int8": Bitsandbytes(8),
    "int4": Bitsandbytes(4),
    **{f"gguf-{kind}": Gguf(kind) for kind in KINDS},
    "w4a16": Compressed("w4a16"),
    "gptq": Compressed("gptq"),
    "awq": Compressed("awq"),
    "w8a8": Compressed("w8a8"),
    "onnx": Onnx("float32"),
    "onnx-int8": Onnx("int8"),
    "pt2": Exported(compiled=False),
    "aoti": Exported(compiled=True),
    "torchao-int8": TorchAo(),
    "adapter": Adapter(),
    "gguf-adapter": GgufAdapter(),
}
GUESSED: dict[str, GuessedFormat] = {name: known for name, known in FORMATS.items() if isinstance(known, GuessedFormat)}
