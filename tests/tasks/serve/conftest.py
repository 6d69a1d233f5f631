"""A release to serve: a model whose weights make its answers distinct, in two formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release with safetensors and GGUF. Nobody writes into it."""
    from storage.artifact import Artifact
    from tests.tasks.export.faults import make_checkpoint
    from tests.tasks.export.test_export import SCORES, run
    from tests.tasks.tiny_model import make_validation

    folder = tmp_path_factory.mktemp("served")
    model, _ = make_checkpoint(folder, heads=2)  # vLLM's attention on CPUs takes heads of 32 numbers or more
    make_validation(folder / "validation", model)
    (folder / "scores").mkdir()
    (folder / "scores" / "scores.json").write_text(json.dumps(SCORES))
    given = (Artifact.at(model), Artifact.at(folder / "scores"), Artifact.at(folder / "validation"))
    return run(folder / "release", given, formats=["safetensors", "gguf-f16", "gguf-q8_0"]).path
