"""The settings that a teacher's likeliest tokens depend on, besides the model's vocabulary and the rows."""

from __future__ import annotations

from pydantic import Field

from tasks.endpoint.prompts import TokenEndpoint
from tasks.posttrain.config import Deduplicate
from tasks.stage.config import StageConfig


class TopTokensConfig(StageConfig):
    """Contains no learning rate or number of epochs: trainings that differ only in these share the artifact."""

    endpoint: TokenEndpoint = Field(description="the endpoint that is the teacher")
    max_length: int | None = Field(None, ge=8, description="maximum tokens of a rendered row (default: the context)")
    deduplicate: Deduplicate = Field("exact", description="rows to drop before")
