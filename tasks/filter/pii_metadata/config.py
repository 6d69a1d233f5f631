"""Which fields of the metadata are looked at, and how."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.filter.pii.config import PiiConfig
from tasks.stage.config import StageConfig

Fields = Literal["all"] | list[str]


class MetadataConfig(StageConfig):
    """How personal data is found in metadata: as in texts."""

    measure: PiiConfig = Field(default_factory=PiiConfig, description="how personal data is found")
    fields: Fields = Field("all", description="fields to look at, or paths such as meta.url; all: every text")
