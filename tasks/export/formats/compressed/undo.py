"""What AWQ and SmoothQuant folded, taken back: the weights of a release as they compare with the checkpoint that it
was made from.

A norm's factors are the ratio of its weights before and after. A linear layer that feeds another was rounded as well:
its factors are those of the columns that it feeds, so that a row of its own that was written wrong stays so.

Shapes: R rows of a weight (what goes out), C columns (what goes in).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from tasks.export.formats.compressed.checkpoint import dense_tensors, raw_tensors
from tasks.export.formats.compressed.folds import FOLDS, Fold, norm_factors


def unfolded_tensors(model: Path, folder: Path, kind: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a folded release in `folder`, in float32, under the names of the checkpoint in `model`, of this
    architecture."""
    now, before = dict(dense_tensors(folder)), dict(raw_tensors(model))
    for fold in FOLDS[kind]:
        for name in [name for name in now if name.endswith(f".{fold.feeder}.weight")]:
            block = name.removesuffix(f"{fold.feeder}.weight")
            _unfold(block, fold, now, before, kind)
    yield from now.items()


def _unfold(block: str, fold: Fold, now: dict[str, Tensor], before: Mapping[str, Tensor], kind: str) -> None:
    feeder, fed = f"{block}{fold.feeder}", [f"{block}{layer}.weight" for layer in fold.fed]
    was, now_is = before[f"{feeder}.weight"].float(), now[f"{feeder}.weight"]
    if was.ndim == 1:
        factors_C = norm_factors(was, now_is, kind)
        now[f"{feeder}.weight"] = was
    elif len(was) != now[fed[0]].shape[1]:
        return
    else:
        factors_C = _columns_factors([before[name].float() for name in fed], [now[name] for name in fed])
        now[f"{feeder}.weight"] = now_is * factors_C.unsqueeze(1)
    if f"{feeder}.bias" in now:
        now[f"{feeder}.bias"] = now[f"{feeder}.bias"] * factors_C
    for name in fed:
        now[name] = now[name] / factors_C


def _columns_factors(before: list[Tensor], now: list[Tensor]) -> Tensor:
    """By how much columns have grown; factors are positive."""
    products = torch.stack([(was * is_RC).sum(0) for was, is_RC in zip(before, now, strict=True)]).sum(0)
    squares = torch.stack([was.square().sum(0) for was in before]).sum(0)
    factors_C = products / squares
    return torch.where(torch.isfinite(factors_C) & (factors_C > 0), factors_C, 1.0)
