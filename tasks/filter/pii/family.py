"""Personal data as a filter family: replaces findings, or removes their documents."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_serializer, field_validator, model_validator

from storage.shards.arrays import Bool
from tasks.filter.family import Change, Family, measuring_half
from tasks.filter.pii.config import Action, NameEntity, PatternEntity, PiiConfig
from tasks.filter.pii.findings import Finding
from tasks.filter.pii.measure import measure_pii, pii_signals
from tasks.filter.pii.replace import replace
from tasks.filter.pii.salt import HIDDEN, REMEDY, SaltSource, read_salt, salt_digest, without_secret
from tasks.filter.rules import Rule, Section, Tested, Turn, bounds, no_details

# Half of all sentences name a place or a people. A person's name gets a surrogate, so that sentences stay readable
USUAL_ACTIONS: dict[str, Action] = {"PERSON": "surrogate", "LOCATION": "keep", "NRP": "keep", "ORGANIZATION": "keep"}


class PiiRules(Section):
    """Actions on personal data by kind: redact (insert a placeholder), surrogate (insert a made-up value), drop (remove
    the document), keep."""

    measure: PiiConfig = Field(default_factory=PiiConfig, description="how personal data is found")
    confidence: float = Field(0.4, ge=0, le=1, description="minimum score of a finding, as Presidio scores it")
    max_findings: int | None = Field(
        None, ge=0, description="maximum number of findings. A document with more is a directory, and is removed"
    )
    action: Action = Field(
        "redact",
        description="action for kinds that aren't in `actions`, except PERSON (surrogate), LOCATION, NRP and "
        "ORGANIZATION (keep)",
    )
    actions: dict[PatternEntity | NameEntity, Action] = Field(
        {},
        description="actions by entity, such as {EMAIL_ADDRESS: surrogate}. Entities without reserved values are "
        "redacted instead of getting a surrogate",
    )
    salt: SaltSource | None = Field(
        None,
        description="where to read the secret salt of surrogates: {env: NAME} or {file: PATH}. Without a salt, anyone "
        "can compute the surrogate of a value that they guess",
    )

    @model_validator(mode="before")
    @classmethod
    def _hide_salt(cls, data: Any) -> Any:
        """Errors quote their input, so remove a salt in clear before any check."""
        if isinstance(data, Mapping) and "salt" in data:
            return {**data, "salt": without_secret(data["salt"])}
        return data

    @field_validator("salt", mode="before")
    @classmethod
    def _refuse_salt_in_clear(cls, value: Any) -> Any:
        if value == HIDDEN:
            raise ValueError(REMEDY)
        return value

    @field_serializer("salt", when_used="json")
    def _spell_no_salt(self, salt: SaltSource | None) -> dict[str, str] | str:
        """Write a missing salt as an empty string in keys, as keys did when a salt was a string."""
        return "" if salt is None else salt.model_dump(exclude_none=True)

    def action_of(self, entity: str) -> Action:
        """The action for findings of a kind."""
        named = {str(name): action for name, action in self.actions.items()}
        return (USUAL_ACTIONS | named).get(entity, self.action)

    def kinds(self, *actions: Action) -> list[str]:
        """The kinds of findings with one of these actions."""
        return [entity for entity in self.measure.entities if self.action_of(entity) in actions]


@dataclass(frozen=True)
class NoFinding:
    """A document passes unless it contains a finding of this kind with at least the threshold's score."""

    name: str
    entity: str
    threshold: float
    signal: str = "pii"
    turn: Turn = Turn.LAST

    def test(self, signals: pa.RecordBatch) -> Tested:
        """See `Rule`."""
        findings = signals[self.signal]
        rows = pc.list_parent_indices(findings).to_numpy()
        parts = pc.list_flatten(findings)
        scores = parts.field("score").to_numpy(zero_copy_only=False)
        same_kind = pc.equal(parts.field("entity"), self.entity).to_numpy(zero_copy_only=False)
        values = np.zeros(signals.num_rows)
        np.maximum.at(values, rows[same_kind], scores[same_kind])
        fails = np.zeros(signals.num_rows, np.bool_)
        fails[rows[same_kind & (scores >= self.threshold)]] = True
        return Tested(fails, np.zeros(signals.num_rows, np.bool_), values)

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """See `Rule`."""
        return no_details(signals)


@dataclass(frozen=True)
class PiiMender:
    """Replaces findings by placeholders or surrogates. It goes first, because findings are offsets in the measured
    text."""

    rules: PiiRules
    salt: str = field(repr=False)
    signal: str = "pii"
    turn: Turn = Turn.FIRST
    column: str = "text"

    def touches(self, signals: pa.RecordBatch) -> Bool:
        """See `Mender`."""
        mask = np.zeros(signals.num_rows, np.bool_)
        parts = pc.list_flatten(signals[self.signal])
        wanted = pc.is_in(parts.field("entity"), pa.array(self.rules.kinds("redact", "surrogate"), pa.string()))
        sure = pc.and_(wanted, pc.greater_equal(parts.field("score"), self.rules.confidence))
        mask[pc.list_parent_indices(signals[self.signal]).filter(sure).to_numpy()] = True
        return mask

    def mend(self, text: str, signals: pa.RecordBatch, row: int) -> Change:
        """See `Mender`."""
        new, kinds = self.replace(text, (Finding(**finding) for finding in signals[self.signal][row].as_py()))
        return Change(new, self.signal, kinds.total(), describe(kinds))

    def replace(self, text: str, findings: Iterable[Finding]) -> tuple[str, Counter[str]]:
        """Replace the findings that are sure enough. Returns the text, and the number of replacements of each kind."""
        sure = [finding for finding in findings if finding.score >= self.rules.confidence]
        new, done = replace(text, sure, lambda finding: self.rules.action_of(finding.entity), self.salt)
        return new, Counter(replacement.finding.entity for replacement in done)


def describe(kinds: Counter[str]) -> str:
    """Kinds of findings with their numbers, as written in the ledger."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def _rules(pii: PiiRules | None) -> Iterator[Rule]:
    for rule in bounds("pii", pii, "pii_"):
        yield dataclasses.replace(rule, turn=Turn.LAST)  # type: ignore[type-var]
    if pii is None:
        return
    for entity in pii.kinds("drop"):
        yield NoFinding(f"pii.{entity.lower()}", entity, pii.confidence)


def _mender(pii: PiiRules | None) -> PiiMender | None:
    return PiiMender(pii, read_salt(pii.salt)) if pii is not None else None


def fingerprints(pii: PiiRules | None) -> dict[str, str]:
    """The digest of the salt, if any. Raises ConfigError for a salt that can't be read."""
    return {} if pii is None or pii.salt is None else {"pii.salt": salt_digest(read_salt(pii.salt))}


def _redact(pii: PiiRules | None, texts: list[str]) -> list[str]:
    """Replace every finding by its placeholder, however unsure, and whatever the profile does with its kind."""
    if pii is None:
        return texts

    rows = measure_pii(pii.measure, pa.array(texts, pa.string()))["pii"].to_pylist()
    findings = [[Finding(**finding) for finding in row] for row in rows]
    return [replace(text, each, lambda finding: "redact", "")[0] for text, each in zip(texts, findings, strict=True)]


FAMILY = Family(
    ("pii",),
    pii_signals,
    measuring_half,
    _rules,
    can_be_last=True,
    fingerprints=fingerprints,
    mender=_mender,
    redact=_redact,
)
