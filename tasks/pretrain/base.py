"""The base of a continued pretraining: its shape, and the report of what changed. No torch: `plan` needs it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from models.presets import ForeignShape, Shape
from models.pretrained import load_config
from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.pretrain.check import check_computed_by_transformers
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.long_context.extend import extended
from tasks.significance.estimate import LEVEL, Values, student
from tasks.stage.output import Output
from tasks.stage.runtime import PretrainRuntime

TABLE = "Tokens by source and split"  # of `tokenize`


def shape_of_base(folder: Path, config: PretrainConfig, runtime: PretrainRuntime) -> Shape:
    """The shape of the model in a folder that is to be trained on. Under an adapter, transformers computes all.

    Raises ConfigError for a context beyond the model's, unless its positions are scaled, for an adapter or frozen parts
    that don't suit it, and for settings and modules with which a model can't be trained that our decoder doesn't
    compute.
    """
    from models.convert import NotCarriedError, shape_of
    from models.foreign import UnknownPartsError, check_positions

    shape: Shape
    base = load_config(folder)
    try:
        shape = _foreign(folder, config, runtime) if config.adapter else shape_of(base)
    except NotCarriedError:
        shape = _foreign(folder, config, runtime)
    if not getattr(shape, "experts", None):
        try:
            config.refuse_router_losses(shape.family)
        except ValueError as error:
            raise ConfigError(f"pretrain.{error}.", "Remove it, or choose a base of the family qwen3_moe.") from error
    shape = extended(shape, config, base)
    if isinstance(shape, ForeignShape) and shape.rope_parameters is not None:
        try:
            check_positions(base, shape)
        except UnknownPartsError as error:
            raise ConfigError(
                f"pretrain.rope_scaling can't be applied: {error}.", "Choose another method, or another base."
            ) from error
    if not config.trains_all:
        from tasks.pretrain.engines.trained import trained_sizes

        trained_sizes(shape, config, folder)
    return shape


def _foreign(folder: Path, config: PretrainConfig, runtime: PretrainRuntime) -> ForeignShape:
    from models.foreign import UnknownPartsError, foreign_shape
    from tasks.pretrain.engines.initialise import adapt_with

    try:
        shape = foreign_shape(folder, adapt_with(config.adapter))
    except UnknownPartsError as error:
        raise ConfigError(
            f"The base can't be trained on: {error}.", "Choose another, or leave out `pretrain` to fine-tune this one."
        ) from error
    if config.adapter is None:
        check_computed_by_transformers(shape.family, config, runtime)
    return shape


def report_change(
    measured: Mapping[str, Mapping[str, list[list[float]]]], tokens: Artifact, out: Output, *, extended: bool
) -> None:
    """Report held-out bits per byte before and after, by source, from nats and tokens of groups of windows. The
    interval of the change is Student's over the groups. Without the table of `tokenize`, as for adopted shards, bits
    per token. Before a base was `extended`, it had the same text in its own tokens."""
    rows = tokens.manifest.counts.get("tables", {}).get(TABLE, []) if tokens.manifest else []
    held_out = [row for row in rows if row["split"] == "validation" and row["bytes"]]
    sizes = {row["source"]: row["tokens"] / row["bytes"] for row in held_out}  # tokens a byte
    unit = "byte" if measured.keys() <= sizes.keys() else "token"
    table, counts = [], {}
    for source, losses in measured.items():
        scale = (sizes[source] if unit == "byte" else 1.0) / math.log(2)
        before, after = (np.array(losses[when])[:, 0] * scale for when in ("before", "after"))
        counts[source] = changed = _change(before, after, np.array(losses["after"])[:, 1])
        interval = "" if changed["low"] is None else f" ({changed['low']:+.4f} to {changed['high']:+.4f})"
        table.append(
            {
                "source": source,
                "before, in the base's own tokens" if extended else "before": f"{changed['before']:.4f}",
                "after": f"{changed['after']:.4f}",
                "change, 95% interval": f"{changed['change']:+.4f}{interval}",
            }
        )
    if table:
        out.count(**{f"held_out_bits_per_{unit}": counts})
        out.table(f"Held-out text, bits per {unit}", table)


def _change(before: Values, after: Values, sizes: Values) -> dict[str, float | None]:
    """The mean losses, and that of their difference with its interval, as a ratio of sums over groups of these sizes
    (Cochran 1977, section 6.4). `before` and `after` are sums of groups."""
    whole, groups = sizes.sum(), len(sizes)
    change = (after - before).sum() / whole
    found = {"before": before.sum() / whole, "after": after.sum() / whole, "change": change}
    low = high = None
    if groups > 1:
        away = after - before - change * sizes
        half = student(LEVEL, groups - 1) * math.sqrt(groups / (groups - 1) * float(away @ away)) / whole
        low, high = round(float(change - half), 6), round(float(change + half), 6)
    return {**{name: round(float(value), 6) for name, value in found.items()}, "low": low, "high": high}
