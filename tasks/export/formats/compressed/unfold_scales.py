"""What AWQ and SmoothQuant folded, taken back: the weights of a release as they compare with the checkpoint that it
was made from.

A norm's factors are the ratio of its weights before and after. A linear layer that feeds another was rounded as well:
by what each of its rows was divided, the row says best, as long as no code of the column that it feeds says otherwise.
So a factor is known even where nearly all codes of a column are 0, and a row that was written wrong stays wrong: the
factor that would excuse it is not the one by which the column was rounded.

Shapes: R rows of a weight (what goes out), C columns (what goes in), F columns of the layer before, whose rows are C.
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
    """The tensors of a folded release in `folder`, of so many bits, in float32, under the names of the checkpoint in
    `model`, of this architecture."""
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
    """A layer whose columns were multiplied before they were rounded: as the checkpoint has it, and as it is written
    with its scales (R, G)."""

    def __init__(self, before_RC: Tensor, now_RC: Tensor, scales_RG: Tensor, bits: int) -> None:
        self.before_RC, self.now_RC, self.bits = before_RC.float(), now_RC, bits
        self.steps_RC = widened(scales_RG, now_RC.shape[1])

    def contradictions(self, factors_C: Tensor) -> Tensor:
        """(C) how many codes of a column are not the nearest to its weights times the factor."""
        codes_RC = (self.now_RC / self.steps_RC).round()
        return (nearest(self.before_RC * factors_C / self.steps_RC, self.bits) != codes_RC).sum(0)

    def divide(self, factors_C: Tensor) -> None:
        """Take the factors out of its columns."""
        self.now_RC = self.now_RC / factors_C


def _unfold(feeder: str, fed: list[Fed], now: dict[str, Tensor], before: Mapping[str, Tensor], kind: str) -> None:
    was, now_is = before[f"{feeder}.weight"].float(), now[f"{feeder}.weight"]
    if was.ndim == 1:
        factors_C = norm_factors(was, now_is, kind)
        now[f"{feeder}.weight"] = was
    elif len(was) != fed[0].now_RC.shape[1]:
        return
    else:
        factors_C = linear_factors(was, now_is, fed)
        now[f"{feeder}.weight"] = now_is * factors_C.unsqueeze(1)
    if f"{feeder}.bias" in now:
        now[f"{feeder}.bias"] = now[f"{feeder}.bias"] * factors_C
    for layer in fed:
        layer.divide(factors_C)


def linear_factors(before_CF: Tensor, now_CF: Tensor, fed: list[Fed]) -> Tensor:
    """By what the rows of a layer were divided (C), by its weights before and after, and by the layers that it feeds.

    A sound row is written to a percent of its factor, and a column of many codes too. Of the two, that counts which
    fewer codes of the column contradict.
    """
    rows_C = _positive((before_CF * now_CF).sum(1) / now_CF.square().sum(1))
    products_C = torch.stack([(layer.before_RC * layer.now_RC).sum(0) for layer in fed]).sum(0)
    columns_C = _positive(products_C / torch.stack([layer.before_RC.square().sum(0) for layer in fed]).sum(0))
    against_rows_C, against_columns_C = (
        torch.stack([layer.contradictions(found_C) for layer in fed]).sum(0) for found_C in (rows_C, columns_C)
    )
    return torch.where(against_columns_C < against_rows_C, columns_C, rows_C)


def _positive(factors_C: Tensor) -> Tensor:
    """Factors are positive; 1 for what is none."""
    return torch.where(torch.isfinite(factors_C) & (factors_C > 0), factors_C, 1.0)
