"""Thresholds of a language in place of the usual ones, as in FineWeb-2 (Penedo et al. 2025, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import Field, ValidationError, model_validator

from tasks.filter.form.rules import C4Rules, FineWebRules, GopherQualityRules, GopherRepetitionRules
from tasks.filter.rules import DIRECTIONS, Thresholds
from tasks.stage.config import StageConfig

GROUPS: Mapping[str, type[StageConfig]] = {
    "gopher_quality": GopherQualityRules,
    "gopher_repetition": GopherRepetitionRules,
    "c4": C4Rules,
    "fineweb": FineWebRules,
}


class LanguageThresholds(StageConfig):
    """Thresholds for documents in one language, null to switch a rule off. For stop words see `form.stop_words_of`."""

    gopher_quality: dict[str, float | None] = Field({}, description="thresholds in place of those of `gopher_quality`")
    gopher_repetition: dict[str, float | None] = Field(
        {}, description="thresholds in place of those of `gopher_repetition`"
    )
    c4: dict[str, float | None] = Field({}, description="thresholds in place of those of `c4`")
    fineweb: dict[str, float | None] = Field({}, description="thresholds in place of those of `fineweb`")

    @model_validator(mode="after")
    def _are_thresholds(self) -> Self:
        for group, rules in GROUPS.items():
            known = [name for name in rules.model_fields if name.partition("_")[0] in DIRECTIONS]
            unknown = sorted(set(getattr(self, group)) - set(known))
            if unknown:
                raise ValueError(f"{group} lacks a threshold {', '.join(unknown)}: choose from {', '.join(known)}")
            try:
                rules.model_validate(getattr(self, group))
            except ValidationError as error:
                parts = (f"{group}.{one['loc'][0]} = {one['input']!r}: {one['msg']}" for one in error.errors())
                raise ValueError("; ".join(parts)) from error
        return self


Languages = Mapping[str, LanguageThresholds]


def of_group(languages: Languages, group: str) -> dict[str, Thresholds]:
    """The thresholds of a group by language."""
    return {language: getattr(own, group) for language, own in languages.items()}


def switched_off(languages: Languages) -> dict[str, list[str]]:
    """The languages that switch a rule off, by the rule's name."""
    by_rule: dict[str, list[str]] = {}
    for language, own in sorted(languages.items()):
        for group in GROUPS:
            for name, threshold in getattr(own, group).items():
                if threshold is None:
                    by_rule.setdefault(f"{group}.{name}", []).append(language)
    return by_rule
