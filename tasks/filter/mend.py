"""What changes in documents that are kept: personal data is replaced, and lines that C4 would not keep are taken out.

Only the rows that hold a finding or such a line are touched; all others are copied as they lie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage.documents import DOCUMENT_SCHEMA, Document, Verdict
from tasks.filter.config import FilterConfig, PiiRules
from tasks.filter.form.c4 import keep_c4_lines
from tasks.filter.pii.findings import Finding
from tasks.filter.pii.replace import replace
from tasks.filter.pii.salt import read_salt

Mask = npt.NDArray[np.bool_]
C4_LINES, C4_CITATIONS = "c4_removed_lines", "c4_citations"  # signals


class Change(NamedTuple):
    """A new text, and what the ledger says of it: the reason, in how many places, and what."""

    text: str
    reason: str
    places: int
    detail: str


def mend(
    documents: pa.RecordBatch, signals: pa.RecordBatch, config: FilterConfig
) -> tuple[pa.RecordBatch, list[Verdict]]:
    """The documents with their texts mended, under the same ids, and a verdict for each change."""
    personal, lines = _findings(signals, config.pii), _has_lines_to_remove(signals, config)
    mask = personal | lines
    texts: list[str] = []
    verdicts: list[Verdict] = []
    for row in np.flatnonzero(mask).tolist():
        document = Document(*(documents[name][row].as_py() for name in DOCUMENT_SCHEMA.names))
        text = document.text
        for change in _changes(text, signals["pii"][row].as_py() if personal[row] else [], bool(lines[row]), config):
            text = change.text
            verdicts.append(
                Verdict(document.id, document.source, "changed", change.reason, change.places, None, change.detail)
            )
        texts.append(text)
    if not texts:
        return documents, []
    mended = pc.replace_with_mask(documents["text"], pa.array(mask), pa.array(texts, pa.string()))
    return documents.set_column(
        documents.schema.get_field_index("text"), DOCUMENT_SCHEMA.field("text"), mended
    ), verdicts


def without_personal_data(text: str, findings: Iterable[dict[str, Any]]) -> str:
    """A text with every finding replaced by its placeholder, for people to look at."""
    return replace(text, [Finding(**finding) for finding in findings], lambda finding: "redact", "")[0]


def _changes(text: str, found: Sequence[dict[str, Any]], lines: bool, config: FilterConfig) -> Iterator[Change]:
    """Personal data first: its places are those of the text as it was measured."""
    if found:
        sure = [Finding(**finding) for finding in found if finding["score"] >= config.pii.confidence]
        text, done = replace(
            text, sure, lambda finding: config.pii.action_of(finding.entity), read_salt(config.pii.salt)
        )
        kinds = Counter(replacement.finding.entity for replacement in done)
        detail = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        yield Change(text, "pii", len(done), detail)
    if lines:
        left = keep_c4_lines(text, config.form.c4)
        yield Change(left, "c4.lines", text.count("\n") - left.count("\n"), f"{len(text):,} → {len(left):,} characters")


def _findings(signals: pa.RecordBatch, rules: PiiRules) -> Mask:
    """Which documents hold a finding to replace."""
    mask = np.zeros(signals.num_rows, np.bool_)
    parts = pc.list_flatten(signals["pii"])
    wanted = pc.is_in(parts.field("entity"), pa.array(rules.kinds("redact", "surrogate"), pa.string()))
    sure = pc.and_(wanted, pc.greater_equal(parts.field("score"), rules.confidence))
    mask[pc.list_parent_indices(signals["pii"]).filter(sure).to_numpy()] = True
    return mask


def _has_lines_to_remove(signals: pa.RecordBatch, config: FilterConfig) -> Mask:
    if config.c4 is None or not config.c4.remove_lines:
        return np.zeros(signals.num_rows, np.bool_)
    cuts = pc.add(signals[C4_LINES], signals[C4_CITATIONS])
    return pc.greater(cuts, 0).to_numpy(zero_copy_only=False)
