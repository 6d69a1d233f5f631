"""Training of the n-gram models: choose documents, count, smooth, evaluate, and measure the usual perplexity."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.artifact import Artifact
from storage.errors import SourceError
from storage.shards.arrays import Float64, Int64
from tasks.filter.perplexity.config import PerplexityModelConfig
from tasks.filter.perplexity.estimate import estimate
from tasks.filter.perplexity.model import HALVES, NgramModel, halves, perplexity, save, score_unseen
from tasks.filter.perplexity.sample import choose, read_rows
from tasks.filter.perplexity.sentences import read_tokens
from tasks.shards import map_shards
from tasks.stage.output import Output

PERPLEXITIES = "perplexities.npy"
SHOWN = 10  # percent between two rows of the table


def train_model(config: PerplexityModelConfig, documents: Artifact, out: Output) -> None:
    """See the stage `perplexity_model`."""
    sample = choose(config, documents, out)
    models, ngrams, trained = _train(config, sample.training)
    scores, tokens = score_unseen(models, sample.training)
    held_out = float(perplexity(scores.sum(), tokens.sum()))
    usual = _usual(models, documents, sample.usual, out)
    percentiles = np.percentile(usual, np.arange(101))
    terciles = np.quantile(usual, (1 / 3, 2 / 3))
    save(models, {"percentiles": percentiles.tolist(), "terciles": terciles.tolist()}, out.path)
    out.count(
        training_documents=len(sample.training),
        training_tokens=trained,
        held_out_perplexity=held_out,
        percentile_documents=len(usual),
    )
    rows = [
        {"order": n + 1, **{f"n-grams of half {half}": found[n] for half, found in enumerate(ngrams)}}
        for n in range(config.order)
    ]
    out.table("N-grams", rows)
    shown = [{"percentile": p, "perplexity": f"{percentiles[p]:.0f}"} for p in range(0, 101, SHOWN)]
    out.table(f"Perplexity of {len(usual):,} documents", shown)


def _train(config: PerplexityModelConfig, texts: pa.StringArray) -> tuple[list[NgramModel], list[list[int]], list[int]]:
    """A model of each half of the texts, its n-grams by order, and its number of training tokens."""
    models, ngrams, trained = [], [], []
    half = halves(texts)
    for number in range(HALVES):
        tokens = read_tokens(texts.take(pa.array(np.flatnonzero(half == number))))
        if not len(tokens):
            raise SourceError(
                "There are too few documents to train a language model: one of the two halves is without a word.",
                "Give the perplexity model more `sources`, or a larger `sample_bytes`.",
            )
        model, counts = estimate(tokens, config.order, config.min_count)
        models.append(model)
        ngrams.append(counts)
        trained.append(len(tokens))
    return models, ngrams, trained


def _usual(models: Sequence[NgramModel], documents: Artifact, rows: Sequence[Int64], out: Output) -> Float64:
    """The perplexity of each document of the sample that has words."""
    jobs = list(zip(documents.files("*.parquet"), rows, strict=True))
    scored = map_shards(functools.partial(_score_shard, models), jobs, out, "score", releases_gil=True)
    usual: Float64 = np.concatenate([np.load(shard.folder / PERPLEXITIES) for shard in scored])
    if not len(usual):
        raise SourceError("No document of the sample for percentiles has a word.", "Raise `percentile_documents`.")
    return usual


def _score_shard(models: Sequence[NgramModel], job: tuple[Path, Int64], folder: Path) -> dict[str, Any]:
    shard, rows = job
    parts = [perplexity(*score_unseen(models, texts)) for texts in read_rows(shard, rows)]
    values = np.concatenate([np.empty(0), *parts])
    np.save(folder / PERPLEXITIES, values[~np.isnan(values)])
    return {}
