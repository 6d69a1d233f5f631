"""Two stages: counts of what a host's documents have in common, and its share in each document."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.side_files import write_signals
from tasks.filter.templates.config import TemplateCountsConfig, TemplatesConfig
from tasks.stage import stage
from tasks.stage.output import Output


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
    from tasks.filter.templates.measure import measure_templates

    measure = functools.partial(measure_templates, config.model, counts.path)
    write_signals(measure, documents, out, columns=["text", "source", "metadata"], releases_gil=True)
