"""`python -m tests.tasks.export.faults [FORMAT …]`: what the proof of an export says of faults, for each format.

A fault is of the checkpoint that a format is written from, or of what was written; the reference is the checkpoint as
it was. Here an exporter errs on purpose. An adapter is written from factors: of these one is corrupted, its scale is
alpha / rank, and it is opened over a base whose tokenizer or rope base is wrong.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from storage.errors import ConfigError, ParityError
from tasks.export.config import ExportConfig
from tasks.export.formats import FORMATS
from tasks.export.formats.adapter.factors import CONFIG
from tasks.export.formats.adapter.gguf import FILE
from tasks.export.formats.source import Adapted, Source
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


def corrupt_factor(adapter: Path) -> None:
    """One row of a change changes its sign: that of B, by which A is multiplied."""
    from safetensors.torch import load_file, save_file

    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors["base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"][7] *= -1
    save_file(tensors, path, {"format": "pt"})


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
    """The first scale of quantized weights becomes 0, and that of an adapter its default; whether there is one."""
    if (written / CONFIG).exists():
        return _lose_in_adapter(written / CONFIG)
    if (written / FILE).exists():
        return _lose_in_gguf_adapter(written / FILE)
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
OF_BASE = ("swapped tokenizer", "wrong rope base")  # of an adapter they are faults of the base below it
FAULTS = (*BEFORE, "missing scale")


def make_checkpoint(folder: Path, **shape: Any) -> tuple[Path, Reference]:
    """A small model with weights large enough for attention to matter, and its answers."""
    from safetensors.torch import load_file, save_file

    model = make_model(folder / "model", **{"kv_heads": 2, "feed_forward": 192, "rope_theta": 100.0, **shape})
    tensors = load_file(model / "model.safetensors")
    for name, values in tensors.items():
        if values.ndim == 2 and "embed" not in name:
            values *= 6
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    return model, _reference(model, folder / "scratch")


def make_adapted(folder: Path) -> tuple[Path, Reference]:
    """That model as a base, in base/, its adapter, in adapter/, and in model/ the two as one: the reference."""
    from tests.tasks.export.test_adapter import FIRST, adapt

    made, _ = make_checkpoint(folder)
    base = made.rename(folder / "base")
    model = adapt(base, folder, FIRST, 1) / "model"
    return model, _reference(model, folder / "scratch")


def _reference(model: Path, scratch: Path) -> Reference:
    drawn = np.random.default_rng(0).integers(10, 600, (6, 120)).tolist()
    config = ExportConfig(prompts=["The fox lives in the"], greedy_tokens=16)
    return Reference(model, tuple(map(tuple, drawn)), config, scratch)


def outcome(fault: str, name: str, model: Path, reference: Reference) -> str:
    """The outcome of a format with a fault (or without one): why it was stopped, `passed`, or NONE. A format of
    adapters takes what lies beside the model."""
    with tempfile.TemporaryDirectory() as folder:
        damaged, release = Path(folder) / "model", Path(folder) / "release"
        shutil.copytree(model, damaged)
        release.mkdir()
        adapted = _adapted(model.parent, Path(folder)) if FORMATS[name].needs_base else None
        if fault == "corrupted weight" and adapted:
            corrupt_factor(adapted.adapters[0])
        elif fault in BEFORE:
            BEFORE[fault](damaged)
            if fault in OF_BASE and adapted:
                BEFORE[fault](adapted.base)
        calibration = tuple(window[:100] for window in reference.windows)
        try:
            FORMATS[name].write(Source(damaged, calibration, adapted=adapted), release)
            if fault == "missing scale" and not lose_scale(FORMATS[name].path(release)):
                return NONE
            weights, parity, _ = prove(reference, name, release, 1, adapted)
            require(name, parity, weights, FORMATS[name].tolerance)
        except ConfigError:
            return NONE
        except ParityError as stopped:
            return stopped.message
        return "passed"


def _adapted(made: Path, folder: Path) -> Adapted:
    """A copy of a base and its adapter."""
    base, adapter = (shutil.copytree(made / name, folder / name) for name in ("base", "adapter"))
    (folder / "base-file").mkdir()
    return Adapted(base, (adapter,), "theirs", folder / "base-file")


def main() -> None:
    """Print the table."""
    print(f"| format | {' | '.join(FAULTS)} |\n|{'---|' * (len(FAULTS) + 1)}")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "adapted").mkdir()
        whole, adapted = make_checkpoint(Path(folder)), make_adapted(Path(folder) / "adapted")
        for name in sys.argv[1:] or FORMATS:
            given = adapted if FORMATS[name].needs_base else whole
            cells = (outcome(fault, name, *given) for fault in FAULTS)
            told = (cell if cell in (NONE, "passed") else "stopped" for cell in cells)
            print(f"| {name} | {' | '.join(told)} |", flush=True)


def _lose_in_adapter(path: Path) -> bool:
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in settings.items() if name != "lora_alpha"}))
    return True


def _lose_in_gguf_adapter(path: Path) -> bool:
    """llama.cpp adds B·A unscaled if alpha is 0."""
    from gguf import GGUFReader

    field = GGUFReader(path, "r+").fields["adapter.lora.alpha"]
    field.parts[field.data[0]][0] = 0
    return True


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
