"""Language as a filter family."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.filter.family import Family, measuring_half
from tasks.filter.language.agreement import Agreement
from tasks.filter.language.rules import LanguageRules
from tasks.filter.language.stage import language_signals
from tasks.filter.rules import Member, Rule, bounds


def _rules(language: LanguageRules | None) -> Iterator[Rule]:
    if language is None:
        return
    yield Member("language", "language", tuple(language.allowed), "language_score")
    if language.measure.second and language.agreement:
        yield Agreement("language.agreement")
    own = {name: {"min_score": score} for name, score in language.scores.items()}
    yield from bounds("language", language, "language_", own)


FAMILY = Family(("language",), language_signals, measuring_half, _rules)
