"""Two stages: what a host's documents have in common, and how much of each document that is."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.side_files import write_signals
from tasks.filter.templates.config import TemplateCountsConfig, TemplatesConfig
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=1, part_of="filter", runtime=("data",))
def template_counts(config: TemplateCountsConfig, documents: Artifact, out: Output) -> None:
    """Count, host by host, in how many documents each sentence stands word for word, each template (a sentence without
    its names, numbers, identifiers and quotations), and each opening (the templates of a document's first sentences).

    Writes sentences.npy, templates.npy and openings.npy, hashes of those of enough documents, with their number;
    hosts.npy; and templates.jsonl with the most frequent of each as people read them, of which tables show some.
    """
    from tasks.filter.templates.count import count_templates

    count_templates(config, documents, out)


@stage(version=2, name="templates", part_of="filter", runtime=("data",))
def template_signals(config: TemplatesConfig, documents: Artifact, counts: Artifact, out: Output) -> None:
    """How much of a document its host repeats. Columns: `boilerplate`, the share of its characters, white space left
    out, in sentences that enough documents of the host have word for word; `template_share`, in those and in sentences
    whose template enough have; `host_templates`, the share of the host's documents that have the same opening, 0 where
    too few have it. Null for a text without words."""
    from tasks.filter.templates.measure import measure_templates

    measure = functools.partial(measure_templates, config.model, counts.path)
    write_signals(measure, documents, out, columns=["text", "source", "metadata"], releases_gil=True)
