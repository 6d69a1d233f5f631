"""Perplexity as a filter family."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.filter.family import Family, measuring_half
from tasks.filter.perplexity.rules import PerplexityRules
from tasks.filter.perplexity.stage import perplexity_model, perplexity_signals
from tasks.filter.rules import Member, Rule, Turn, bounds


def _rules(perplexity: PerplexityRules | None) -> Iterator[Rule]:
    yield from bounds("perplexity", perplexity, "perplexity_")
    if perplexity is not None:
        buckets = tuple(perplexity.buckets)
        yield Member("perplexity.buckets", "perplexity_bucket", buckets, "perplexity", turn=Turn.LAST)


FAMILY = Family(("perplexity",), perplexity_signals, measuring_half, _rules, model=perplexity_model)
