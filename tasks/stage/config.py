"""The half of a profile that bears identity: the base of every stage's config. The other half is runtime.py."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StageConfig(BaseModel):
    """Choices that change a stage's result. Frozen, unknown keys refused, every field described."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
