"""The positions of a base, scaled for the context of its training. No torch at the top: `plan` needs it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.kernels.rope_scaling import BETA_FAST, BETA_SLOW, scaling_of
from models.presets import ForeignShape, Shape
from models.pretrained import ORIGINAL, context_of, extend, head_size, load_config
from storage.errors import ConfigError
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.long_context.scaling import RopeScalingConfig

GLOBAL = "full_attention"  # the layers that see the whole context, of a model with other positions in the others
LOW_FREQ, HIGH_FREQ = 1.0, 4.0  # of Llama 3.1


def extended(shape: Shape, config: PretrainConfig, base: Any = None) -> Shape:
    """The shape of a base at the context of its training. One that our decoder can't compute needs the `base`'s config
    of transformers.

    Raises ConfigError for a context above the base's without `rope_scaling`, for `rope_scaling` without such a context,
    and for a scaling that the base can't have or that doesn't reach the context.
    """
    scaling, context = config.rope_scaling, config.context or shape.context
    if scaling is None:
        if context > shape.context:
            raise ConfigError(
                f"pretrain.context is {context:,}, but the base sees {shape.context:,} tokens.",
                "Lower it, or set pretrain.rope_scaling, such as {method: yarn}, which scales the base's positions.",
            )
        return shape
    if context <= shape.context:
        raise ConfigError(
            f"pretrain.rope_scaling is set, but the context of {context:,} isn't above the base's {shape.context:,}.",
            "Raise pretrain.context, or set rope_scaling to null.",
        )
    if isinstance(shape, ForeignShape):
        return replace(shape, context=context, rope_parameters=scaled_parameters(base, scaling, context))
    known = None if shape.rope_theta is None else shape.rope_parameters
    parameters = _of_all_layers(_Known(shape.family, shape.context, shape.head_dim, known), scaling, context)
    whole = parameters.get(GLOBAL, parameters)
    return replace(shape, context=context, rope_theta=float(whole["rope_theta"]), rope_scaling=scaling_of(whole))


def scaled_parameters(base: Any, scaling: RopeScalingConfig, context: int) -> dict[str, Any]:
    """transformers' `rope_parameters` of a base at a longer context. Of a model whose kinds of layers have positions of
    their own, only those that see the whole context are scaled. Raises ConfigError as `extended`."""
    parameters = getattr(base, "rope_parameters", None)
    return _of_all_layers(_Known(base.model_type, context_of(base), head_size(base), parameters), scaling, context)


@dataclass(frozen=True)
class _Known:
    """What of a base decides its positions."""

    family: str
    context: int
    head_size: int
    parameters: Mapping[str, Any] | None


def _of_all_layers(base: _Known, scaling: RopeScalingConfig, context: int) -> dict[str, Any]:
    parameters = base.parameters
    if not parameters:
        raise _refusal(f"the base, a {base.family}, has no rotary positions that its config could scale")
    if GLOBAL in parameters:
        return {**parameters, GLOBAL: _scaled(base, parameters[GLOBAL], scaling, context)}
    return _scaled(base, parameters, scaling, context)


def _scaled(base: _Known, known: Mapping[str, Any], scaling: RopeScalingConfig, context: int) -> dict[str, Any]:
    before = base.context
    known = {name: value for name, value in known.items() if name != "type"}
    kind, theta, stretch = known.get("rope_type", "default"), known.get("rope_theta"), context / before
    if theta is None:
        raise _refusal(f"the config of the base, a {base.family}, lacks the rope_theta of its rotary positions")
    if kind not in ("default", scaling.method):
        remedy = f"{kind}, which goes on from there" if kind in ("linear", "yarn", "llama3") else "another base"
        raise _refusal(f"the base's positions are scaled by {kind} already", f"Choose {remedy}.")
    factor = stretch if scaling.factor is None else scaling.factor
    if factor < stretch:
        raise ConfigError(
            f"pretrain.rope_scaling.factor is {factor:g}, but {context:,} tokens are {stretch:g} times the base's "
            f"{before:,}.",
            "Raise it, leave it out, or lower pretrain.context.",
        )
    if scaling.method in ("theta", "ntk"):
        size = int(base.head_size * known.get("partial_rotary_factor", 1.0))
        raised = scaling.theta if scaling.method == "theta" else theta * factor ** (size / (size - 2))
        assert raised is not None
        if raised <= theta:
            raise ConfigError(
                f"pretrain.rope_scaling.theta is {raised:g}, but the base's is {theta:g}.",
                "A longer context needs a higher one.",
            )
        return {**known, "rope_theta": float(raised)}
    whole = {**known, "rope_type": scaling.method, "factor": float(known.get("factor") or 1.0) * factor}
    if scaling.method == "linear":
        return whole
    given = {name: getattr(scaling, name) for name in ("attention_factor", "beta_fast", "beta_slow")}
    if scaling.method == "llama3":
        given = {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
        whole = {"low_freq_factor": LOW_FREQ, "high_freq_factor": HIGH_FREQ, **whole}
    elif kind == "yarn" and scaling.attention_factor is None:
        whole = {name: value for name, value in whole.items() if name != "attention_factor"}  # of the old factor
    whole |= {ORIGINAL: known.get(ORIGINAL) or before}
    whole |= {name: value for name, value in given.items() if value is not None}
    low, high = (
        (whole["low_freq_factor"], whole["high_freq_factor"])
        if scaling.method == "llama3"
        else (whole.get("beta_slow") or BETA_SLOW, whole.get("beta_fast") or BETA_FAST)
    )
    if low >= high:
        names = "low_freq_factor and high_freq_factor" if scaling.method == "llama3" else "beta_slow and beta_fast"
        raise _refusal(f"{names} are {low:g} and {high:g}", "The first must be the lower.")
    return whole


@contextmanager
def as_extended(folder: Path, config: PretrainConfig | None) -> Iterator[Path]:
    """A folder like a base's, with the config that the training will write: checks of later stages read it."""
    if config is None or config.rope_scaling is None or config.context is None:
        yield folder
        return
    base = load_config(folder)
    base = extend(base, config.context, scaled_parameters(base, config.rope_scaling, config.context))
    with tempfile.TemporaryDirectory() as made:
        for path in folder.iterdir():
            if path.name != "config.json":
                os.symlink(path.resolve(), Path(made) / path.name)
        base.save_pretrained(made)
        yield Path(made)


def _refusal(why: str, remedy: str = "Choose another base, or set rope_scaling to null.") -> ConfigError:
    return ConfigError(f"pretrain.rope_scaling can't be applied: {why}.", remedy)
