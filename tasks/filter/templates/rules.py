"""The thresholds on templates."""

from __future__ import annotations

from pydantic import Field

from tasks.filter.rules import Section
from tasks.filter.templates.config import TemplatesConfig


class TemplatesRules(Section):
    """Limits on text that a host fills into templates: pages of products and of the weather, results of a search,
    generated documentation, notices."""

    measure: TemplatesConfig = Field(default_factory=TemplatesConfig, description="what counts as a host's template")
    max_template_share: float | None = Field(
        0.6,
        ge=0,
        le=1,
        description="share of characters in sentences that enough documents of the host share as a template or word "
        "for word",
    )
    max_host_templates: float | None = Field(
        None, ge=0, le=1, description="share of the host's documents that begin with the same templates"
    )
    max_boilerplate: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of characters in sentences that enough documents of the host share word for word",
    )
