"""Two stages: the n-gram language model, and the perplexity of every document under it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from storage.artifact import Artifact
from storage.shards.arrays import Float64
from tasks.filter.perplexity.config import PerplexityConfig, PerplexityModelConfig
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output

if TYPE_CHECKING:
    from tasks.filter.perplexity.model import NgramModel

BUCKETS = ("head", "middle", "tail")
SCHEMA = pa.schema(
    [("perplexity", pa.float64()), ("perplexity_percentile", pa.float64()), ("perplexity_bucket", pa.string())]
)


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
    write_signals(functools.partial(measure_perplexity, model.path), documents, out, releases_gil=True)


@functools.cache
def _loaded(folder: Path) -> tuple[list[NgramModel], dict[str, Any]]:
    from tasks.filter.perplexity.model import load

    return load(folder)


def measure_perplexity(folder: Path, texts: pa.Array) -> pa.RecordBatch:
    """Perplexity, percentile and bucket of each text under the models in `folder`. Null for texts without words."""
    from tasks.filter.perplexity.model import perplexity, score_unseen

    models, figures = _loaded(folder)
    scores, tokens = score_unseen(models, texts)
    values = perplexity(scores, tokens)
    wordless = tokens == 0
    bucket = pa.array(np.searchsorted(figures["terciles"], values), mask=wordless)
    columns = [
        pa.array(values, mask=wordless),
        pa.array(percentile_of(values, np.array(figures["percentiles"])), mask=wordless),
        pa.array(BUCKETS).take(bucket),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def percentile_of(values: Float64, percentiles: Float64) -> Float64:
    """The rank of values among 101 percentiles, from 0 to 100. For equal percentiles, the middle of their ranks."""
    grid = np.arange(101.0)
    upwards = np.interp(values, percentiles, grid)
    downwards = np.interp(-values, -percentiles[::-1], grid)
    return (upwards + 100 - downwards) / 2
