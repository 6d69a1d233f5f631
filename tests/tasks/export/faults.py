"""`python -m tests.tasks.export.faults [FORMAT …]`: what the proof of an export says of faults, for each format.

A fault is of the checkpoint that a format is written from, or of what was written; the reference is the checkpoint as
it was. Here an exporter errs on purpose.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from storage.errors import ConfigError, ParityError
from tasks.export.config import ExportConfig
from tasks.export.formats import FORMATS
from tasks.export.formats.source import Source
from tasks.export.proof.judge import require
from tasks.export.proof.reference import Reference
from tasks.export.run import prove
from tests.tasks.tiny_model import make_model

NONE = "–"  # a format that has no such part
SCALES = ("scale", "absmax", ".SCB")  # of quantized tensors, by the names that libraries give them


def corrupt_weight(model: Path) -> None:
    """One row of one matrix changes its sign."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][7] *= -1
    save_file(tensors, model / "model.safetensors", {"format": "pt"})


def swap_tokenizer(model: Path) -> None:
    """Two tokens of the vocabulary change places."""
    settings = json.loads((model / "tokenizer.json").read_text())
    vocabulary = settings["model"]["vocab"]
    one, other = "The", "Ġthe"
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (model / "tokenizer.json").write_text(json.dumps(settings))


def change_template(model: Path) -> None:
    """Every conversation begins with a line feed."""
    path = model / "chat_template.jinja"
    path.write_text("{{ '\\n' }}" + path.read_text())


def change_rope_base(model: Path) -> None:
    """Rotary positions turn more slowly."""
    config = json.loads((model / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] *= 10
    (model / "config.json").write_text(json.dumps(config))


def lose_scale(written: Path) -> bool:
    """The first scale of quantized weights becomes 0; whether there is one."""
    if written.suffix == ".gguf":
        return _lose_in_gguf(written)
    if (written / "model.onnx").exists():
        return _lose_in_onnx(written / "model.onnx")
    path = written / "model.safetensors"
    return path.exists() and _lose_in_safetensors(path)


BEFORE: Mapping[str, Callable[[Path], None]] = {
    "corrupted weight": corrupt_weight,
    "swapped tokenizer": swap_tokenizer,
    "wrong template": change_template,
    "wrong rope base": change_rope_base,
}
FAULTS = (*BEFORE, "missing scale")


def make_checkpoint(folder: Path) -> tuple[Path, Reference]:
    """A small model with weights large enough for attention to matter, and its answers."""
    from safetensors.torch import load_file, save_file

    model = make_model(folder / "model", kv_heads=2, feed_forward=192, rope_theta=100.0)
    tensors = load_file(model / "model.safetensors")
    for name, values in tensors.items():
        if values.ndim == 2 and "embed" not in name:
            values *= 6
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    drawn = np.random.default_rng(0).integers(10, 600, (6, 120)).tolist()
    config = ExportConfig(prompts=["The fox lives in the"], greedy_tokens=16)
    return model, Reference(model, tuple(map(tuple, drawn)), config, folder / "scratch")


def outcome(fault: str, name: str, model: Path, reference: Reference) -> str:
    """What a format with a fault comes to: why it was stopped, `passed`, or NONE."""
    with tempfile.TemporaryDirectory() as folder:
        damaged, release = Path(folder) / "model", Path(folder) / "release"
        shutil.copytree(model, damaged)
        release.mkdir()
        if fault in BEFORE:
            BEFORE[fault](damaged)
        calibration = tuple(window[:100] for window in reference.windows)
        try:
            FORMATS[name].write(Source(damaged, calibration), release)
            if fault not in BEFORE and not lose_scale(FORMATS[name].path(release)):
                return NONE
            weights, parity, _ = prove(reference, name, release, 1)
            require(name, parity, weights, FORMATS[name].tolerance)
        except ConfigError:
            return NONE
        except ParityError as stopped:
            return stopped.message
        return "passed"


def main() -> None:
    """Print the table."""
    print(f"| format | {' | '.join(FAULTS)} |\n|{'---|' * (len(FAULTS) + 1)}")
    with tempfile.TemporaryDirectory() as folder:
        model, reference = make_checkpoint(Path(folder))
        for name in sys.argv[1:] or [name for name, known in FORMATS.items() if not known.needs_base]:
            cells = (outcome(fault, name, model, reference) for fault in FAULTS)
            told = (cell if cell in (NONE, "passed") else "stopped" for cell in cells)
            print(f"| {name} | {' | '.join(told)} |", flush=True)


def _lose_in_safetensors(path: Path) -> bool:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    with safe_open(path, framework="pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(path)
    scale = next((name for name in sorted(tensors) if name.endswith(SCALES)), None)
    if scale is None:
        return False
    tensors[scale].zero_()
    save_file(tensors, path, metadata)
    return True


def _lose_in_gguf(path: Path) -> bool:
    from gguf import GGUFReader

    read = GGUFReader(path)
    found = next((one for one in read.tensors if one.tensor_type.name not in ("F32", "F16", "BF16")), None)
    if found is None:
        return False
    start = int(found.data_offset)
    raw = bytearray(path.read_bytes())
    row = found.n_bytes // int(found.shape[1])
    raw[start : start + row] = bytes(row)
    path.write_bytes(bytes(raw))
    return True


def _lose_in_onnx(path: Path) -> bool:
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(path)
    found = next((one for one in graph.graph.initializer if "scale" in one.name.lower()), None)
    if found is None:
        return False
    values = numpy_helper.to_array(found)
    found.CopyFrom(numpy_helper.from_array(np.zeros_like(values), found.name))
    onnx.save(graph, path)
    return True


if __name__ == "__main__":
    main()
