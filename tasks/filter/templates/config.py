"""Which sentences count as templates of a host."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.stage.config import StageConfig


class TemplateCountsConfig(StageConfig):
    """What is counted, once over all documents."""

    by: Literal["host", "source"] = Field(
        "host",
        description="count by host, of the address in the metadata, or by source where there is none; or by source",
    )
    documents: int = Field(
        10, ge=2, description="documents of a host that must have a template; hosts with fewer documents have none"
    )
    share: float = Field(
        0.02, ge=0, le=1, description="and share of the host's documents, so that large hosts need more of them"
    )
    words: int = Field(
        3,
        ge=1,
        description="words that a sentence must have, and a template without its names and numbers; there a label "
        "before a colon counts as three",
    )
    opening_words: int = Field(
        8,
        ge=1,
        description="words, names and numbers left out, of which as many first sentences are a document's opening",
    )


class TemplatesConfig(StageConfig):
    """Templates as signals."""

    model: TemplateCountsConfig = Field(
        default_factory=TemplateCountsConfig, description="what counts as a template of a host"
    )
