"""Each fault that an exporter can make is stopped by the proof, in every format."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.export.formats import FORMATS
from tasks.export.proof.reference import Reference
from tests.tasks.export.faults import FAULTS, NONE, make_adapted, make_checkpoint, outcome

QUICK = ("safetensors", "int8", "gguf-f16", "gguf-q4_k_m")  # the others are in `make soak`
WHOLE = tuple(name for name, known in FORMATS.items() if not known.needs_base)
ADAPTERS = tuple(name for name, known in FORMATS.items() if known.needs_base)
QUANTIZED = tuple(name for name in FORMATS if name not in ("safetensors", "gguf-f32", "gguf-f16", "gguf-bf16"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    return make_checkpoint(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.soak) for name in WHOLE]
)
def test_a_fault_is_stopped(fault: str, name: str, checkpoint: tuple[Path, Reference]) -> None:
    if lacking := FORMATS[name].needs():
        pytest.skip(lacking)
    found = outcome(fault, name, *checkpoint)
    if found == NONE:
        assert fault == "missing scale"
        assert name not in QUANTIZED or name in ("onnx", "pt2", "aoti")
    else:
        assert found != "passed"
        assert "tokenizer" in found or fault != "swapped tokenizer"


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    return make_adapted(tmp_path_factory.mktemp("adapted"))


@pytest.mark.soak_but(
    "adapter-corrupted weight", "adapter-wrong rope base", "adapter-swapped tokenizer", "adapter-wrong template"
)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ADAPTERS)
def test_a_fault_of_an_adapter_is_stopped(fault: str, name: str, adapted: tuple[Path, Reference]) -> None:
    assert outcome(fault, name, *adapted) not in (NONE, "passed")


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_without_a_fault_passes(name: str, adapted: tuple[Path, Reference]) -> None:
    assert outcome("none", name, *adapted) == "passed"


def test_nothing_is_stopped_where_nothing_is_wrong(checkpoint: tuple[Path, Reference], tmp_path: Path) -> None:
    """Without this, the other test would prove nothing."""
    from tasks.export.formats.source import Source
    from tasks.export.proof.judge import require
    from tasks.export.run import prove

    model, reference = checkpoint
    for name in QUICK:
        FORMATS[name].write(Source(model, reference.windows), tmp_path)
        weights, parity, _ = prove(reference, name, tmp_path, 1)
        require(name, parity, weights, FORMATS[name].tolerance)
