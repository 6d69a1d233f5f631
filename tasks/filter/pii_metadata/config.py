"""The metadata fields to search for personal data, and how to search them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.filter.pii.config import PiiConfig
from tasks.stage.config import StageConfig

Fields = Literal["all"] | list[str]


class MetadataConfig(StageConfig):
    """Settings of the search for personal data in metadata, which works as in texts."""

    measure: PiiConfig = Field(default_factory=PiiConfig, description="how personal data is found")
    fields: Fields = Field("all", description="fields to search, or paths such as meta.url, or all for every text")
