"""Toxicity as a filter family."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.filter.classifier.source import check_here
from tasks.filter.family import Family, measuring_half
from tasks.filter.rules import Rule, bounds
from tasks.filter.toxicity.rules import ToxicityRules
from tasks.filter.toxicity.stage import toxicity_model, toxicity_signals


def _rules(toxicity: ToxicityRules | None) -> Iterable[Rule]:
    return bounds("toxicity", toxicity, "toxicity_")


FAMILY = Family(("toxicity",), toxicity_signals, measuring_half, _rules, model=toxicity_model, check_here=check_here)
