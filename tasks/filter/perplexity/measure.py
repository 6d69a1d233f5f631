"""The perplexity signals of a row group."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Float64
from tasks.filter.perplexity.model import NgramModel, load, perplexity, score_unseen

BUCKETS = ("head", "middle", "tail")
SCHEMA = pa.schema(
    [("perplexity", pa.float64()), ("perplexity_percentile", pa.float64()), ("perplexity_bucket", pa.string())]
)


@functools.cache
def _loaded(folder: Path) -> tuple[list[NgramModel], dict[str, Any]]:
    return load(folder)


def measure_perplexity(folder: Path, texts: pa.Array) -> pa.RecordBatch:
    """Perplexity, percentile and bucket of each text under the models in `folder`. Null for texts without words."""
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
