"""Changes in documents that are kept: only the affected rows are touched, all others are copied as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.documents import DOCUMENT_SCHEMA, Document, Verdict
from tasks.filter.family import Mender


def mend(
    documents: pa.RecordBatch, signals: pa.RecordBatch, menders: Sequence[Mender]
) -> tuple[pa.RecordBatch, list[Verdict]]:
    """The documents with their texts changed by each mender in turn, under the same ids, and a verdict per change."""
    masks = [mender.touches(signals) for mender in menders]
    mask = np.logical_or.reduce(masks) if masks else np.zeros(documents.num_rows, np.bool_)
    texts: list[str] = []
    verdicts: list[Verdict] = []
    for row in np.flatnonzero(mask).tolist():
        document = Document(*(documents[name][row].as_py() for name in DOCUMENT_SCHEMA.names))
        text = document.text
        for mender in (mender for mender, touched in zip(menders, masks, strict=True) if touched[row]):
            change = mender.mend(text, signals, row)
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
