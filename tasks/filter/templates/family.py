"""Templates as a filter family."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.filter.family import Family, measuring_half
from tasks.filter.rules import Rule, bounds
from tasks.filter.templates.rules import TemplatesRules
from tasks.filter.templates.stage import template_counts, template_signals


def _rules(templates: TemplatesRules | None) -> Iterable[Rule]:
    return bounds("templates", templates, "")


FAMILY = Family(("templates",), template_signals, measuring_half, _rules, model=template_counts)
