"""The least memory that post-training needs: what the states of its model take, whatever the rows are.

Activations, logits, a reference, a teacher and samples follow from the lengths of rows, which a plan doesn't know.
"""

from __future__ import annotations

from models.memory import LIBRARIES, Setup
from profiles.schema import Profile
from tasks.posttrain.methods import METHODS

WHOLE = 4  # bytes a parameter in float32


def least_memory(profile: Profile, name: str, parameters: int, *, cuda: bool) -> int | None:
    """Bytes that a process of a link of the chain needs at least, or None for a link that trains no model. On a CPU it
    is the first one, which gathers a divided model at the end. An adapter's states are left out."""
    if name not in METHODS:
        return None
    sharded = _setup(profile).sharded
    ways = profile.runtime.training.processes if sharded == 3 else 1
    frozen = getattr(profile, name).adapter is not None
    states = WHOLE * parameters // ways if frozen else _states(profile, parameters)
    if cuda:
        return states
    return states + (WHOLE * parameters if ways > 1 else 0) + LIBRARIES


def divided(profile: Profile) -> bool:
    """Whether each process reads only its part of a model."""
    return _setup(profile).sharded == 3


def _setup(profile: Profile) -> Setup:
    runtime = profile.runtime.posttrain
    return Setup(engine=runtime.engine, zero_stage=runtime.zero_stage)


def _states(profile: Profile, parameters: int) -> int:
    """Weights, gradients and AdamW's moments in float32, as far as the engine doesn't divide them over processes."""
    sharded = _setup(profile).sharded
    moments, gradients, weights = (
        size // (profile.runtime.training.processes if sharded >= stage else 1)
        for stage, size in ((1, 8 * parameters), (2, 4 * parameters), (3, 4 * parameters))
    )
    return moments + gradients + weights
