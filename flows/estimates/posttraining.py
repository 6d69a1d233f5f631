"""The least memory that post-training needs: what the states of its model take, whatever the rows are.

Activations, logits, a reference, a teacher and samples follow from the lengths of rows, which a plan doesn't know.
"""

from __future__ import annotations

from models.memory import LIBRARIES, Setup
from profiles.schema import Profile
from tasks.posttrain.methods import METHODS

WHOLE = 4  # bytes a parameter: each process loads the model in float32, and an adapter's is merged so


def least_memory(profile: Profile, name: str, parameters: int, *, cuda: bool) -> int | None:
    """Bytes that each process of a link of the chain needs at least, or None for a link that trains no model."""
    if name not in METHODS:
        return None
    states = WHOLE * parameters if getattr(profile, name).adapter is not None else _states(profile, parameters)
    return max(WHOLE * parameters, states) + (0 if cuda else LIBRARIES)


def _states(profile: Profile, parameters: int) -> int:
    """Weights, gradients and AdamW's moments in float32, as far as the engine doesn't divide them over processes."""
    runtime = profile.runtime.posttrain
    sharded = Setup(engine=runtime.engine, zero_stage=runtime.zero_stage).sharded
    moments, gradients, weights = (
        size // (profile.runtime.training.processes if sharded >= stage else 1)
        for stage, size in ((1, 8 * parameters), (2, 4 * parameters), (3, 4 * parameters))
    )
    return moments + gradients + weights
