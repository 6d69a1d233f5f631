"""Quality as a filter family."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.filter.classifier.source import check_here
from tasks.filter.family import Family, measuring_half
from tasks.filter.quality.rules import QualityRules
from tasks.filter.quality.stage import quality_model, quality_signals
from tasks.filter.rules import Rule, bounds


def _rules(quality: QualityRules | None) -> Iterable[Rule]:
    return bounds("quality", quality, "quality_")


FAMILY = Family(("quality",), quality_signals, measuring_half, _rules, model=quality_model, check_here=check_here)
