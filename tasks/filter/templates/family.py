"""Templates as a filter family."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from tasks.filter.family import Family, measuring_half
from tasks.filter.rules import Rule, Section, bounds
from tasks.filter.templates.config import TemplatesConfig
from tasks.filter.templates.measure import template_counts, template_signals


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


def _rules(templates: TemplatesRules | None) -> Iterable[Rule]:
    return bounds("templates", templates, "")


FAMILY = Family(("templates",), template_signals, measuring_half, _rules, model=template_counts)
