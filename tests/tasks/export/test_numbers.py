"""NaN and infinite weights, and weights beyond a dtype's range, are refused by name."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from storage.artifact import Artifact
from storage.errors import ConfigError, TrainingError
from tasks.export import ExportConfig, check_formats, export
from tasks.export.formats import FORMATS
from tasks.export.formats.source import Source
from tasks.stage.output import Output
from tests.tasks.tiny_model import RUNTIME, make_model, make_validation

NAME = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("sound") / "model")


def holding(number: float, model: Path, folder: Path) -> Path:
    """A copy in which one weight is this number."""
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[NAME][3, 4] = number
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.soak_but("nan-NaN")
@pytest.mark.parametrize(("number", "what"), [(math.nan, "NaN"), (math.inf, "infinite numbers")])
def test_a_model_of_no_numbers_is_no_release_in_any_format(
    number: float, what: str, sound: Path, tmp_path: Path
) -> None:
    model = holding(number, sound, tmp_path / "model")
    make_validation(tmp_path / "validation", sound)
    out = Output.at(tmp_path, stage="export", runtime=RUNTIME)
    config = ExportConfig(formats=["int8", "gguf-f16", "gptq"], positions=64)
    with pytest.raises(TrainingError, match=f"The model can't be released: {NAME} has {what}"):
        export.function(config, Artifact.at(model), None, Artifact.at(tmp_path / "validation"), {}, None, out)
    assert not [path for path in out.path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["gguf-f16", "gguf-q4_k_m", "gguf-q8_0", "gguf-iq3_s"])
def test_weights_beyond_float16_are_refused_by_name_where_a_type_needs_it(
    name: str, sound: Path, tmp_path: Path
) -> None:
    model = holding(8e7, sound, tmp_path / "model")
    with pytest.raises(ConfigError, match=f"{NAME} has weights up to 8e\\+07, beyond the range of float16") as error:
        FORMATS[name].write(Source(model), tmp_path)
    assert f"Leave {name} out" in error.value.remedy
    FORMATS["gguf-bf16"].write(Source(model), tmp_path)
    with pytest.raises(ConfigError, match=f"{NAME} has weights up to 8e\\+07, beyond the range of float16"):
        check_formats(ExportConfig(formats=["gguf-bf16", name]), model, wide=True)
    check_formats(ExportConfig(formats=["gguf-bf16", name]), model)


def test_plain_weights_beyond_float16_are_refused_by_name(sound: Path, tmp_path: Path) -> None:
    model = holding(8e4, sound, tmp_path / "model")
    (tmp_path / "release").mkdir()
    with pytest.raises(ConfigError, match=f"{NAME} has weights up to 8e\\+04, beyond the range of float16"):
        FORMATS["safetensors"].write(Source(model, dtype="float16"), tmp_path / "release")
    with pytest.raises(ConfigError, match=f"{NAME} has weights up to 8e\\+04, beyond the range of float16"):
        check_formats(ExportConfig(formats=["safetensors"], dtype="float16"), model, wide=True)
    for config in (ExportConfig(formats=["safetensors", "gguf-q8_0"]), ExportConfig(formats=["safetensors"])):
        check_formats(config, model, wide=True)  # 8e4 is less than 127 times the largest float16
