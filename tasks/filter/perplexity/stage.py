"""Two stages: the n-gram language model, and the perplexity of every document under it."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.perplexity.config import PerplexityConfig, PerplexityModelConfig
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=1, part_of="filter", runtime=("data",))
def perplexity_model(config: PerplexityModelConfig, documents: Artifact, out: Output) -> None:
    """Train an n-gram model with interpolated modified Kneser-Ney smoothing (Chen and Goodman 1998), equal to that of
    KenLM's `lmplz --discount_fallback` (Heafield et al. 2013), and measure the usual perplexity of documents.

    Writes ngrams-0.npy and ngrams-1.npy (the models of two halves, hash tables that are mapped into memory) and
    model.json (their figures, and percentiles and terciles of perplexity over a sample of all documents).
    """
    from tasks.filter.perplexity.train import train_model

    train_model(config, documents, out)


@stage(version=3, name="perplexity", part_of="filter", runtime=("data",))
def perplexity_signals(config: PerplexityConfig, documents: Artifact, model: Artifact, out: Output) -> None:
    """Measure the perplexity of each document (CCNet: Wenzek et al. 2020). Columns: `perplexity` per word and, relative
    to this corpus, `perplexity_percentile` (0 to 100) and `perplexity_bucket` (head, middle or tail). Null for a text
    without words."""
    from tasks.filter.perplexity.measure import measure_perplexity

    write_signals(functools.partial(measure_perplexity, model.path), documents, out, releases_gil=True)
