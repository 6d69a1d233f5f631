"""The signals of documents: how much of each is in sentences and templates that many documents of its host share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Bool
from tasks.dedup.spans.kinds import salts_of
from tasks.filter.templates.config import TemplateCountsConfig
from tasks.filter.templates.frequent import HOSTS, load_table, look_up
from tasks.filter.templates.sentences import OPENINGS, SENTENCES, TEMPLATES, find_sentences

SCHEMA = pa.schema([("template_share", pa.float64()), ("host_templates", pa.float64()), ("boilerplate", pa.float64())])


def measure_templates(
    config: TemplateCountsConfig, counts: Path, texts: pa.Array, sources: pa.Array, metadata: pa.Array
) -> pa.RecordBatch:
    """The signals of D documents, given the artifact of `template_counts` (see `stage.py`). Null without words."""
    salts = salts_of(sources, metadata, config.by)
    sentences = find_sentences(config, texts, salts)
    total = np.bincount(sentences.documents, sentences.sizes, len(texts))
    repeated, filled = np.zeros((2, len(sentences.sizes)), np.bool_)
    for kind, mark in ((SENTENCES, repeated), (TEMPLATES, filled)):
        counted = sentences.counted[kind]
        mark[counted.places] = look_up(*load_table(kind, counts), counted.keys) > 0
    openings = sentences.counted[OPENINGS]
    with_opening = np.zeros(len(texts))
    with_opening[openings.documents] = look_up(*load_table(OPENINGS, counts), openings.keys)
    of_host = look_up(*load_table(HOSTS, counts), salts)

    def share(chosen: Bool) -> pa.Array:
        part = np.bincount(sentences.documents, chosen * sentences.sizes, len(texts))
        return pa.array(part / np.maximum(total, 1), mask=total == 0)

    columns = [
        share(repeated | filled),
        pa.array(with_opening / np.maximum(of_host, 1), mask=total == 0),
        share(repeated),
    ]
    return pa.record_batch(columns, SCHEMA)
