"""The settings that say which sentences count as templates of a host."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.stage.config import StageConfig


class TemplateCountsConfig(StageConfig):
    """Settings of the counts, which are made once over all documents."""

    by: Literal["host", "source"] = Field(
        "host",
        description="count by the host in the metadata's address (by source if it is missing), or always by source",
    )
    documents: int = Field(
        10, ge=2, description="minimum documents of a host with a template. Hosts with fewer documents have none"
    )
    share: float = Field(
        0.02, ge=0, le=1, description="minimum share of a host's documents with a template, for large hosts"
    )
    words: int = Field(
        3,
        ge=1,
        description="minimum words of a sentence, and of a template without names and numbers (a `label:` counts as 3)",
    )
    opening_words: int = Field(
        8, ge=1, description="minimum words of a document's opening, its first sentences, without names and numbers"
    )


class TemplatesConfig(StageConfig):
    """Templates as signals."""

    model: TemplateCountsConfig = Field(
        default_factory=TemplateCountsConfig, description="what counts as a template of a host"
    )
