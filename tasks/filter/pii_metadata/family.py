"""Personal data in metadata as a filter family: the actions are those for texts (`filter.pii`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from storage.shards.arrays import Bool
from tasks.filter.family import Change, Family
from tasks.filter.pii.family import NoFinding, PiiMender, PiiRules
from tasks.filter.pii.findings import Finding
from tasks.filter.pii.salt import read_salt
from tasks.filter.pii_metadata.fields import Fields, replace_fields
from tasks.filter.pii_metadata.measure import MetadataConfig, metadata_signals
from tasks.filter.rules import Rule, Turn

SIGNAL = "pii_metadata"


@dataclass(frozen=True)
class MetadataMender:
    """Replaces findings in the fields of metadata."""

    inner: PiiMender
    turn: Turn = Turn.FIRST
    column: str = "metadata"

    def touches(self, signals: pa.RecordBatch) -> Bool:
        """See `Mender`."""
        return self.inner.touches(signals)

    def mend(self, text: str, signals: pa.RecordBatch, row: int) -> Change:
        """See `Mender`."""
        findings: dict[str, list[Finding]] = {}
        for finding in signals[SIGNAL][row].as_py():
            findings.setdefault(finding.pop("field"), []).append(Finding(**finding))
        done: Counter[str] = Counter()

        def change(name: str, value: str) -> str:
            new, kinds = self.inner.replace(value, findings.get(name, []))
            done.update({f"{kind} in {name or 'metadata'}": count for kind, count in kinds.items()})
            return new

        new = replace_fields(text, change)
        detail = ", ".join(f"{count} {what}" for what, count in sorted(done.items()))
        return Change(new, SIGNAL, done.total(), detail)


def _measured_by(pii: PiiRules | None, fields: Fields) -> MetadataConfig | None:
    return MetadataConfig(measure=pii.measure, fields=fields) if pii and fields else None


def _rules(pii: PiiRules | None, fields: Fields) -> Iterator[Rule]:
    if pii is None or not fields:
        return
    for entity in pii.kinds("drop"):
        yield NoFinding(f"{SIGNAL}.{entity.lower()}", entity, pii.confidence, SIGNAL)


def _mender(pii: PiiRules | None, fields: Fields) -> MetadataMender | None:
    return MetadataMender(PiiMender(pii, read_salt(pii.salt), SIGNAL)) if pii and fields else None


FAMILY = Family(("pii", "pii_metadata"), metadata_signals, _measured_by, _rules, can_be_last=True, mender=_mender)
