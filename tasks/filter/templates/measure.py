"""The signals of documents: how much of each is in sentences and templates that many documents of its host share."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.artifact import Artifact
from storage.shards.arrays import Bool
from tasks.filter.side_files import write_signals
from tasks.filter.templates.config import TemplateCountsConfig, TemplatesConfig
from tasks.stage import stage
from tasks.stage.output import Output

SCHEMA = pa.schema([("template_share", pa.float64()), ("host_templates", pa.float64()), ("boilerplate", pa.float64())])


@stage(version=1, part_of="filter", runtime=("data",))
def template_counts(config: TemplateCountsConfig, documents: Artifact, out: Output) -> None:
    """Count the documents of each host that have a sentence word for word, a template (a sentence without its names,
    numbers, identifiers and quotations), or an opening (the templates of a document's first sentences).

    Writes sentences.npy, templates.npy and openings.npy (hashes of those in enough documents, with their number),
    hosts.npy, and templates.jsonl with the text of the most frequent of each, of which tables show some.
    """
    from tasks.filter.templates.count import count_templates

    count_templates(config, documents, out)


@stage(version=2, name="templates", part_of="filter", runtime=("data",))
def template_signals(config: TemplatesConfig, documents: Artifact, counts: Artifact, out: Output) -> None:
    """Measure how much of a document its host repeats. Columns, null for a text without words:

    - `boilerplate`: the share of characters, without white space, in sentences that enough documents of the host share
      word for word
    - `template_share`: the share in these sentences and in those whose template enough documents share
    - `host_templates`: the share of the host's documents that have the same opening, 0 if too few have it
    """
    measure = functools.partial(measure_templates, config.model, counts.path)
    write_signals(measure, documents, out, columns=["text", "source", "metadata"], releases_gil=True)


def measure_templates(
    config: TemplateCountsConfig, counts: Path, texts: pa.Array, sources: pa.Array, metadata: pa.Array
) -> pa.RecordBatch:
    """The signals of D documents, given the artifact of `template_counts`. For the columns see `template_signals`."""
    from tasks.dedup.spans.kinds import salts_of
    from tasks.filter.templates.frequent import HOSTS, load_table, look_up
    from tasks.filter.templates.sentences import OPENINGS, SENTENCES, TEMPLATES, find_sentences

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
