"""The child of `quantized_model`: `python -m tasks.evaluate.other_models.quantize SPEC` writes a format of a model."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from models.pretrained import context_of, load_config
from models.tokenizer import beginning, copy_tokenizer, load_tokenizer
from storage.shards.token_stream import TokenStream
from tasks.children.child import run_as_child
from tasks.children.devices import device_of
from tasks.evaluate.other_models.quantized_model import QuantizedSpec
from tasks.export.formats import FORMATS
from tasks.export.formats.source import Source
from tasks.export.proof.held_out import Windows, held_out

CONFIGS = ("config.json", "generation_config.json")


def run(path: Path) -> None:
    """Write model/, and report its bytes as the result."""
    spec = QuantizedSpec.model_validate_json(path.read_text())
    chosen = FORMATS[spec.config.format]
    release = spec.scratch / "release"
    shutil.rmtree(release, ignore_errors=True)
    release.mkdir(parents=True)
    compute = spec.runtime.compute
    torch.set_num_threads(compute.cpu_threads())
    chosen.write(
        Source(spec.model, _calibration(spec), threads=compute.cpu_threads(), device=str(device_of(compute))), release
    )
    written, model = chosen.path(release), spec.out / "model"
    if written.is_dir():
        written.rename(model)
    else:  # one file for llama.cpp, to which the tokenizer is added for the harness
        model.mkdir()
        written.rename(model / written.name)
        copy_tokenizer(spec.model, model)
        for name in CONFIGS:
            if (spec.model / name).is_file():
                shutil.copyfile(spec.model / name, model / name)
    spec.finish({"bytes": sum(file.stat().st_size for file in model.iterdir())})


def _calibration(spec: QuantizedSpec) -> Windows:
    if not spec.held_out:
        return ()
    stream = TokenStream(spec.held_out, tokenizer_digest=spec.tokenizer_digest)
    context = context_of(load_config(spec.model))
    begin, tokens = beginning(load_tokenizer(spec.model)), spec.config.calibration_tokens
    return held_out(stream, context, calibration=tokens, proof=1, begin=begin).calibration


if __name__ == "__main__":
    run_as_child(run)
