"""The factors that AWQ and SmoothQuant folded are recovered from the written weights, and excuse no wrong row."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.pretrained import StoredWeights
from tasks.export.formats import FORMATS
from tasks.export.formats.compressed.rounding import round_to, widest_scales
from tasks.export.formats.compressed.unfold_scales import Fed, linear_factors
from tasks.export.formats.source import Source
from tasks.export.proof.weights import WeightError, WeightErrors
from tests.tasks.export.test_compressed import windows
from tests.tasks.tiny_model import make_model

WIDTH = 64


def written(weak: float) -> tuple[Tensor, Tensor, Fed, Tensor]:
    """A layer before and after, the one that it feeds, and the factors: all columns but one of each 32 are `weak`."""
    drawn = torch.Generator().manual_seed(0)
    feeder_CF, fed_RC = torch.randn(WIDTH, 48, generator=drawn), torch.randn(40, WIDTH, generator=drawn)
    fed_RC[:, torch.arange(WIDTH) % 32 != 0] *= weak
    factors_C = torch.exp(torch.randn(WIDTH, generator=drawn) / 2)
    rows_CF, columns_RC = feeder_CF / factors_C.unsqueeze(1), fed_RC * factors_C
    rounded = round_to(columns_RC, widest_scales(columns_RC, 32, 4), 4)
    after_CF = round_to(rows_CF, widest_scales(rows_CF, 48, 4), 4).dense()
    return feeder_CF, after_CF, Fed(fed_RC, rounded.dense(), rounded.scales_RG, 4), factors_C


@pytest.mark.parametrize("weak", [1, 0.05, 0.001, 0.0])
def test_factors_are_known_where_nearly_all_codes_are_zero(weak: float) -> None:
    before, after, fed, factors = written(weak)
    assert (linear_factors(before, after, [fed]) / factors - 1).abs().max() < 0.08


@pytest.mark.parametrize("wrong", [-1.0, 0.25, 0.5, 2.0, 4.0])
def test_a_row_that_was_written_wrong_stays_wrong(wrong: float) -> None:
    before, after, fed, _ = written(1)
    after[7] *= wrong
    found = linear_factors(before, after, [fed])
    off = (after * found.unsqueeze(1) - before).norm(dim=1) / before.norm(dim=1)
    assert off[7] == pytest.approx(abs(wrong - 1), rel=0.25)
    assert off[:7].max() < 0.25


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each 32 columns of the last matrix of a block one is a hundred times the others, whose codes are mostly 0."""
    model = make_model(tmp_path_factory.mktemp("uneven") / "model", feed_forward=192)
    tensors = load_file(model / "model.safetensors")
    for name, value in tensors.items():
        if name.endswith("down_proj.weight"):
            value[:, ::32] *= 100
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    return model


def off(method: str, model: Path, release: Path) -> WeightError:
    errors = WeightErrors(model)
    for _ in errors.watch(FORMATS[method].weights(model, release)):
        pass
    return errors.largest()


@pytest.mark.parametrize("method", ["awq", "w8a8"])
def test_a_release_with_few_codes_in_a_column_is_sound(method: str, uneven: Path, tmp_path: Path) -> None:
    FORMATS[method].write(Source(uneven, windows(600)), tmp_path)
    assert off(method, uneven, tmp_path).row.error < FORMATS[method].tolerance.max_weight_error
    expected = StoredWeights(uneven)
    rows = "model.layers.1.mlp.up_proj.weight"
    found = dict(FORMATS[method].weights(uneven, tmp_path))[rows]
    apart = np.linalg.norm(found - expected[rows], axis=1) / np.linalg.norm(expected[rows], axis=1)
    assert apart.max() < 0.25, "its own rounding, and no guess of a factor"


@pytest.mark.parametrize("method", ["awq", "w8a8"])
def test_a_lost_or_a_wrong_row_is_told(method: str, uneven: Path, tmp_path: Path) -> None:
    FORMATS[method].write(Source(uneven, windows(600)), tmp_path / "sound")
    limit = FORMATS[method].tolerance.max_weight_error
    for layer in ("up_proj", "down_proj"):
        for factor in (0.0, -1.0):
            shutil.copytree(tmp_path / "sound", tmp_path / "broken", dirs_exist_ok=True)
            path = tmp_path / "broken" / method / "model.safetensors"
            tensors = load_file(path)
            tensors[f"model.layers.1.mlp.{layer}.weight_scale"][7] *= factor
            save_file(tensors, path, {"format": "pt"})
            found = off(method, uneven, tmp_path / "broken")
            assert found.row.error > limit, (layer, factor)
