"""The deciding half: rules over signals, tried in order; the first that fails is the reason.

A rule is a name, a signal, a threshold and a direction, so that the ledger can say what was measured against what.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from storage.documents import Document, Verdict
from tasks.filter.config import FilterConfig
from tasks.filter.pii import Finding, redact

Signals = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """A document passes when its signal is at least (`min`) or at most (`max`) the threshold."""

    name: str
    signal: str
    kind: Literal["min", "max"]
    threshold: float

    def passes(self, signals: Signals) -> bool:
        """Whether these signals pass."""
        value = float(signals[self.signal])
        return value >= self.threshold if self.kind == "min" else value <= self.threshold


def rules(config: FilterConfig) -> list[Rule]:
    """Every threshold of the config as a rule, in the order in which they are tried."""
    quality, repetition = config.quality, config.repetition
    found = [Rule("language_score", "language_score", "min", config.language.min_score)]
    for group, fields in (("quality", quality.model_dump()), ("repetition", repetition.model_dump())):
        for name, threshold in fields.items():
            kind, _, signal = name.partition("_")
            if kind in ("min", "max"):
                found.append(Rule(f"{group}.{name}", signal, "min" if kind == "min" else "max", float(threshold)))
    found.append(Rule("toxicity.max_score", "toxicity", "max", config.toxicity.max_score))
    if not quality.allow_lorem_ipsum:
        found.append(Rule("quality.lorem_ipsum", "lorem_ipsum", "max", 0))
    return found


def decide(document: Document, signals: Signals, config: FilterConfig, tests: list[Rule]) -> Verdict | None:
    """Why a document goes, or None when it stays."""
    if signals["language"] not in config.language.allowed:
        return _removed(document, "language", signals["language_score"], None, signals["language"] or "none")
    for rule in tests:
        if not rule.passes(signals):
            return _removed(document, rule.name, float(signals[rule.signal]), rule.threshold, "")
    for finding in findings(signals, config):
        if action(finding, config) == "drop":
            return _removed(document, f"pii.{finding.entity.lower()}", finding.score, config.pii.min_score, "")
    return None


def clean(document: Document, signals: Signals, config: FilterConfig) -> tuple[Document, Verdict | None]:
    """The document with personal data redacted, and the ledger's row if that changed it."""
    found = [finding for finding in findings(signals, config) if action(finding, config) == "redact"]
    if not found:
        return document, None
    text, replaced = redact(document.text, found)
    kinds = sorted({finding.entity for finding in replaced})
    detail = ", ".join(f"{sum(finding.entity == kind for finding in replaced)} {kind}" for kind in kinds)
    verdict = Verdict(document.id, document.source, "changed", "pii", float(len(replaced)), None, f"redacted {detail}")
    return document._replace(text=text), verdict


def findings(signals: Signals, config: FilterConfig) -> list[Finding]:
    """The findings of personal data that are sure enough."""
    return [Finding(*row) for row in json.loads(signals["pii"]) if row[3] >= config.pii.min_score]


def action(finding: Finding, config: FilterConfig) -> str:
    """What the profile wants done with a finding."""
    return str(getattr(config.pii, finding.entity.lower()))


def _removed(document: Document, reason: str, value: float, threshold: float | None, detail: str) -> Verdict:
    return Verdict(document.id, document.source, "removed", reason, value, threshold, detail)
