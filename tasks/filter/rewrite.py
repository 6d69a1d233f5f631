"""Changes of kept documents. Only the affected rows are rewritten, all others are copied as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.shards.documents import DOCUMENT_SCHEMA, Verdict
from tasks.filter.family import Mender


def mend(
    documents: pa.RecordBatch, signals: pa.RecordBatch, menders: Sequence[Mender]
) -> tuple[pa.RecordBatch, list[Verdict]]:
    """Apply the menders in turn to texts and metadata. Returns the documents, with the same ids, and a verdict per
    change."""
    verdicts: list[Verdict] = []
    for column in dict.fromkeys(mender.column for mender in menders):
        chosen = [mender for mender in menders if mender.column == column]
        documents = _mend_column(documents, signals, column, chosen, verdicts)
    return documents, verdicts


def _mend_column(
    documents: pa.RecordBatch, signals: pa.RecordBatch, column: str, menders: Sequence[Mender], verdicts: list[Verdict]
) -> pa.RecordBatch:
    masks = [mender.touches(signals) for mender in menders]
    mask = np.logical_or.reduce(masks)
    values: list[str] = []
    for row in np.flatnonzero(mask).tolist():
        value, identity, source = (documents[name][row].as_py() for name in (column, "id", "source"))
        for mender in (mender for mender, touched in zip(menders, masks, strict=True) if touched[row]):
            change = mender.mend(value, signals, row)
            if change.text == value:
                continue
            value = change.text
            verdicts.append(Verdict(identity, source, "changed", change.reason, change.places, None, change.detail))
        values.append(value)
    if not values:
        return documents
    mended = pc.replace_with_mask(documents[column], pa.array(mask), pa.array(values, pa.string()))
    field = DOCUMENT_SCHEMA.field(column)
    return documents.set_column(documents.schema.get_field_index(column), field, mended)
