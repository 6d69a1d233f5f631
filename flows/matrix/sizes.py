"""The sizes that a profile's new model can have: its proportions at other widths.

A width is a multiple of the model's width a head, so that heads keep their size, as muP needs. Depth, and the
feed-forward size and number of experts' channels where the profile sets them, follow in proportion.
"""

from __future__ import annotations

from typing import Any

from models.config import MOST_WIDE
from models.presets import ModelShape, count_parameters, derive, flops_per_token
from profiles.schema import Profile
from storage.errors import ConfigError
from tasks.ablate.scaling.config import SizeConfig
from tasks.pretrain import PretrainConfig

SCALED = ("feed_forward", "expert_feed_forward")
LEAST_DEPTH = 2  # one layer can't look up what followed a token before (Olsson et al. 2022): it has another law
MULTIPLE = 8  # of a scaled feed-forward size


def model_of(profile: Profile) -> tuple[PretrainConfig, ModelShape]:
    """The pretraining of a profile and the shape of its model. Raises ConfigError for one without a new model."""
    config = profile.pretrain
    if config is None or config.model is None:
        raise ConfigError(
            f"{profile.name} trains no new model, so its size can't vary.", "Give a profile with pretrain.model."
        )
    shape = derive(config.new_model, profile.tokenizer.vocab_size)
    if shape.width % shape.heads:
        raise ConfigError(
            f"The width {shape.width} is no multiple of the {shape.heads} heads.", "Set pretrain.model.heads."
        )
    return config, shape


def settings_of(profile: Profile, width: int) -> dict[str, Any]:
    """The settings of pretrain.model for another width, and none for the profile's own. Raises ConfigError."""
    config, shape = model_of(profile)
    model, each = config.new_model, shape.width // shape.heads
    if width % each or not 0 < width <= MOST_WIDE:
        how = f"no multiple of {each}, that of a head" if width % each else f"not between {each} and {MOST_WIDE:,}"
        raise ConfigError(f"A width of {width} is {how}.", f"Give {each}, {2 * each}, {3 * each}, …")
    if width == shape.width:
        return {}
    share, heads = width / shape.width, width // each
    found: dict[str, Any] = {
        "width": width,
        "heads": heads,
        "depth": max(min(LEAST_DEPTH, shape.depth), round(shape.depth * share)),
    }
    if model.kv_heads is not None:
        divisors = [number for number in range(1, heads + 1) if heads % number == 0]
        found["kv_heads"] = min(divisors, key=lambda number: abs(number - shape.kv_heads * share))
    if shape.head_size is not None:
        found["head_size"] = shape.head_size
    for name in SCALED:
        if (value := getattr(model, name)) is not None:
            found[name] = max(1, round(value * share / MULTIPLE)) * MULTIPLE
    return found


def size_of(profile: Profile, width: int) -> SizeConfig:
    """The size of a profile's model at a width."""
    config, own = model_of(profile)
    model = config.new_model.model_copy(update=settings_of(profile, width))
    shape = derive(model, own.vocab_size)
    return SizeConfig(
        width=width, depth=shape.depth, parameters=count_parameters(shape), size=flops_per_token(shape) / 6
    )


def sizes_up_to(profile: Profile, largest: float) -> list[SizeConfig]:
    """All sizes in ascending order, until N is `largest`."""
    _, shape = model_of(profile)
    each = shape.width // shape.heads
    found = [size_of(profile, each)]
    while found[-1].size < largest:
        # Near to each other where models are small, and at most a tenth apart where they are large
        found.append(size_of(profile, found[-1].width + each * max(1, found[-1].width // (10 * each))))
    return found
