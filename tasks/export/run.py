"""The child of `export`: `python -m tasks.export.run SPEC` writes each format, loads it back and compares."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import torch

from models.convert import load
from storage.token_stream import TokenStream
from tasks.children.child import emit, run_as_child
from tasks.children.spec import ChildSpec
from tasks.export.config import ExportConfig, Format
from tasks.export.formats.checkpoints import write_quantized, write_safetensors
from tasks.export.formats.gguf_file import write_gguf
from tasks.export.parity import InLlamaCpp, InTransformers, Reference, require


class ExportSpec(ChildSpec):
    """Written as JSON by the stage."""

    config: ExportConfig
    model: Path
    tokenizer_digest: str
    validation: list[Path]


def run(path: Path) -> None:
    """Write and prove every format of the spec; parity as JSON to `spec.result`. Raises ParityError."""
    spec = ExportSpec.model_validate_json(path.read_text())
    torch.set_num_threads(spec.runtime.compute.threads)
    reference = Reference(spec.model, TokenStream(spec.validation, tokenizer_digest=spec.tokenizer_digest), spec.config)
    proved = {}
    for number, name in enumerate(spec.config.formats):
        emit(done=number, note=name)
        written = _write(spec, name)
        if name.startswith("gguf-"):
            vocab_size = int(reference.runtime.model.config.vocab_size)
            parity = reference.compare(InLlamaCpp(written, vocab_size, spec.runtime.compute.threads))
        else:
            parity = reference.compare(InTransformers(written))
        size = sum(file.stat().st_size for file in ([written] if written.is_file() else written.iterdir()))
        proved[name] = {"bytes": size, **require(name, parity, spec.config.tolerance(name))}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {"perplexity": round(reference.perplexity, 8), "formats": proved, "facts": {"peak_memory_bytes": peak}}
    spec.result.write_text(json.dumps(result))


def _write(spec: ExportSpec, name: Format) -> Path:
    """The format's folder or file in the release."""
    if name.startswith("gguf-"):
        kind = name.removeprefix("gguf-")
        path = spec.out / "gguf" / f"model-{kind}.gguf"
        path.parent.mkdir(exist_ok=True)
        write_gguf(load(spec.model), spec.model, path, kind)  # type: ignore[arg-type]
        return path
    folder = spec.out / name
    if name == "safetensors":
        write_safetensors(spec.model, folder)
    else:
        write_quantized(spec.model, folder, bits=8 if name == "int8" else 4)
    return folder


if __name__ == "__main__":
    run_as_child(run)
