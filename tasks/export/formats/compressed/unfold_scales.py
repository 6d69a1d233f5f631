"""Undoes the folds of AWQ and SmoothQuant, so that a release's weights compare with the checkpoint they were made from.

A norm's factors are the ratio of its weights before and after. A linear feeder was rounded as well: the factor of each
of its rows is estimated best from the row itself, unless codes of the column that it feeds contradict it. So a factor
is known even if nearly all codes of a column are 0, and a row written wrongly stays wrong, because the factor that
would excuse it isn't the one that its column was rounded with.

Shapes: R rows of a weight (outputs), C columns (inputs), F columns of the feeder, whose rows are C.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from tasks.export.formats.compressed.checkpoint import SCALE, dense_tensors, raw_tensors
from tasks.export.formats.compressed.folds import FOLDS, norm_factors
from tasks.export.formats.compressed.rounding import nearest, widened


def unfolded_tensors(model: Path, folder: Path, kind: str, bits: int) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a folded release of `bits` bits in `folder`, in float32, under the names of the checkpoint in
    `model`, whose architecture is `kind`."""
    now, before = dict(dense_tensors(folder)), dict(raw_tensors(model))
    scales = {name: value for name, value in raw_tensors(folder) if name.endswith(f".{SCALE}")}
    for fold in FOLDS[kind]:
        for name in [name for name in now if name.endswith(f".{fold.feeder}.weight")]:
            block = name.removesuffix(f"{fold.feeder}.weight")
            fed = [f"{block}{layer}" for layer in fold.fed]
            rounded = [
                Fed(before[f"{one}.weight"], now[f"{one}.weight"], scales[f"{one}.{SCALE}"], bits) for one in fed
            ]
            _unfold(f"{block}{fold.feeder}", rounded, now, before, kind)
            now |= {f"{one}.weight": layer.now_RC for one, layer in zip(fed, rounded, strict=True)}
    yield from now.items()


class Fed:
    """A layer whose columns were multiplied before rounding: its weights in the checkpoint, and the written ones with
    their scales (R, G)."""

    def __init__(self, before_RC: Tensor, now_RC: Tensor, scales_RG: Tensor, bits: int) -> None:
        self.before_RC, self.now_RC, self.bits = before_RC.float(), now_RC, bits
        self.steps_RC = widened(scales_RG, now_RC.shape[1])

    def contradictions(self, factors_C: Tensor) -> Tensor:
        """(C) the number of codes in each column that aren't the nearest to its weights times the factor."""
        codes_RC = (self.now_RC / self.steps_RC).round()
        return (nearest(self.before_RC * factors_C / self.steps_RC, self.bits) != codes_RC).sum(0)

    def divide(self, factors_C: Tensor) -> None:
        """Divide the factors out of its columns."""
        self.now_RC = self.now_RC / factors_C


def _unfold(feeder: str, fed: list[Fed], now: dict[str, Tensor], before: Mapping[str, Tensor], kind: str) -> None:
    original, written = before[f"{feeder}.weight"].float(), now[f"{feeder}.weight"]
    if original.ndim == 1:
        factors_C = norm_factors(original, written, kind)
        now[f"{feeder}.weight"] = original
    elif len(original) != fed[0].now_RC.shape[1]:
        return
    else:
        factors_C = linear_factors(original, written, fed)
        now[f"{feeder}.weight"] = written * factors_C.unsqueeze(1)
    if f"{feeder}.bias" in now:
        now[f"{feeder}.bias"] = now[f"{feeder}.bias"] * factors_C
    for layer in fed:
        layer.divide(factors_C)


def linear_factors(before_CF: Tensor, now_CF: Tensor, fed: list[Fed]) -> Tensor:
    """The factors (C) that a layer's rows were divided by, from its weights before and after and the layers it feeds.

    A sound row gives its factor to about a percent, and so does a column of many codes. The estimate that fewer codes
    of the column contradict wins, the row's at a tie.
    """
    rows_C = _positive((before_CF * now_CF).sum(1) / now_CF.square().sum(1))
    products_C = torch.stack([(layer.before_RC * layer.now_RC).sum(0) for layer in fed]).sum(0)
    columns_C = _positive(products_C / torch.stack([layer.before_RC.square().sum(0) for layer in fed]).sum(0))
    against_rows_C, against_columns_C = (
        torch.stack([layer.contradictions(estimate_C) for layer in fed]).sum(0) for estimate_C in (rows_C, columns_C)
    )
    return torch.where(against_columns_C < against_rows_C, columns_C, rows_C)


def _positive(factors_C: Tensor) -> Tensor:
    """The factors, with 1 in place of any that isn't positive and finite."""
    return torch.where(torch.isfinite(factors_C) & (factors_C > 0), factors_C, 1.0)
