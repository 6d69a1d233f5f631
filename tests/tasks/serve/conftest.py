"""One release and one server for the tests that change neither."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.artifact import Artifact
from tests.tasks.serve.real_server import Server, make_release, serving
from tests.tasks.tiny_model import make_validation


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release."""
    return make_release(tmp_path_factory.mktemp("release"), kv_heads=2)


@pytest.fixture(scope="session")
def server(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of that release. Requests of this machine need no key."""
    with serving(release, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def proved_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release whose answers are distinct, in safetensors and two kinds of GGUF, without its list of files."""
    from tests.tasks.export.faults import make_checkpoint
    from tests.tasks.export.test_export import SCORES, run

    folder = tmp_path_factory.mktemp("proved")
    model, _ = make_checkpoint(folder, heads=2)  # vLLM's attention on CPUs takes heads of 32 numbers or more
    make_validation(folder / "validation", model)
    (folder / "scores").mkdir()
    (folder / "scores" / "scores.json").write_text(json.dumps(SCORES))
    given = (Artifact.at(model), Artifact.at(folder / "scores"), Artifact.at(folder / "validation"))
    return run(folder / "release", given, formats=["safetensors", "gguf-f16", "gguf-q8_0"]).path
