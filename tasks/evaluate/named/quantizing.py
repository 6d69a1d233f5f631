"""The child of `quantized_model`: `python -m tasks.evaluate.named.quantizing SPEC` writes one format of one model."""

from __future__ import annotations

import shutil
from pathlib import Path

from models.tokenizer import copy_tokenizer
from tasks.children.child import run_as_child
from tasks.evaluate.named.quantized import QuantizedSpec
from tasks.export.formats import FORMATS

CONFIGS = ("config.json", "generation_config.json")


def run(path: Path) -> None:
    """Write model/, and leave how large its weights are."""
    spec = QuantizedSpec.model_validate_json(path.read_text())
    chosen = FORMATS[spec.config.format]
    release = spec.scratch / "release"
    shutil.rmtree(release, ignore_errors=True)
    release.mkdir(parents=True)
    chosen.write(spec.model, release)
    written, model = chosen.path(release), spec.out / "model"
    if written.is_dir():
        written.rename(model)
    else:  # one file, as llama.cpp reads it: what the harness encodes and decodes with stands beside
        model.mkdir()
        written.rename(model / written.name)
        copy_tokenizer(spec.model, model)
        for name in CONFIGS:
            if (spec.model / name).is_file():
                shutil.copyfile(spec.model / name, model / name)
    spec.finish({"bytes": sum(file.stat().st_size for file in model.iterdir())})


if __name__ == "__main__":
    run_as_child(run)
