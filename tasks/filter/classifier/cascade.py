"""Training of a cascade's first model on the classifier's own scores, with cuts that ensure an agreement.

The classifier scores one piece of each document of a sample, chosen by the hash of its ID: high if the score reaches
the cut, otherwise low. Half of the documents train the fast model. A quarter chooses each side's cut, which moves from
the surest pieces towards unsure ones as long as the lower bound of the agreement (Clopper and Pearson 1934) is at least
the configured one. The order is fixed beforehand, and a walk ends at its first failure. Each of a few walks begins with
more pieces than the one before, and they share the risk, so that one early disagreement doesn't end all of them. The
confidence thus holds for the widest resulting cut (fixed sequence testing with several starts: Angelopoulos et al.
2021, Learn then Test). The last quarter takes no part in this, and gives the figures of the report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from storage.artifact import Artifact
from storage.errors import SourceError
from storage.shards.arrays import Bool, Float64
from tasks.filter.classifier.config import CascadeConfig
from tasks.filter.classifier.first_model import CUTS, FIRST, FirstModel, Side
from tasks.filter.classifier.scorer import Cutter
from tasks.filter.classifier.workers import score_pieces
from tasks.filter.fasttext_model.labelled import Example
from tasks.filter.fasttext_model.sample import draw, sample_documents
from tasks.filter.fasttext_model.scorer import load_scorer
from tasks.filter.fasttext_model.train import train_classifier
from tasks.stage.output import Output

CHARACTERS = 10_000  # at the beginning of a document, from which its piece is taken
STARTS = 4  # walks over a side, each starting with twice as many pieces as the one before
STEPS = 100  # of a walk over a whole side
PARTS = (0.25, 0.5)  # a draw below the first puts a document into the part for the cuts, below the second for figures


class Piece(NamedTuple):
    """One piece of a document of the sample."""

    id: str
    text: str


def train_first(config: CascadeConfig, documents: Artifact, out: Output) -> None:
    """Train the first model, choose its cuts, measure both on held-out pieces, and write first/.

    Raises SourceError if the sample has too few pieces on a side, or no cut ensures the agreement.
    """
    pieces = _sample(config, documents, out)
    scores = score_pieces(out.path, [piece.text for piece in pieces], out, "sample")
    high = scores >= config.cut
    place = np.array([draw(piece.id, "cascade") for piece in pieces])
    choosing, held_out = place < PARTS[0], (place >= PARTS[0]) & (place < PARTS[1])
    training = [Example(pieces[n].id, bool(high[n]), pieces[n].text) for n in np.flatnonzero(place >= PARTS[1])]
    training_counts = _train(config, training, out)
    odds = _odds(out.path / FIRST, pieces)
    middle = load_scorer(out.path / FIRST).sigmoid(odds) >= 0.5
    cuts = {
        "low": _cut(config, -odds, ~high, scores, choosing & ~middle),
        "high": _cut(config, odds, high, scores, choosing & middle),
    }
    if cuts["low"]:
        cuts["low"] = Side(-cuts["low"].odds, cuts["low"].score)
    if not any(cuts.values()):
        raise SourceError(
            f"The first model of the cascade does not reach the agreement with the classifier ({config.agreement:.1%} "
            f"at a confidence of {config.confidence:.0%}) on {least(config):,} pieces of either side.",
            "Lower first.agreement, raise first.sample, or leave `first` out.",
        )
    (out.path / FIRST / CUTS).write_text(json.dumps(cuts) + "\n")
    _report(config, [pieces[n] for n in np.flatnonzero(held_out)], high[held_out], training_counts, cuts, out)


def least(config: CascadeConfig) -> int:
    """The minimum number of pieces of a side that can show the agreement, if all of them agree."""
    return math.ceil(math.log(1 - _confidence(config)) / math.log(config.agreement))


def _confidence(config: CascadeConfig) -> float:
    """The confidence of each walk."""
    return 1 - (1 - config.confidence) / STARTS


def lower_bound(agreeing: int, pieces: int, confidence: float) -> float:
    """The exact lower bound of a share (Clopper and Pearson 1934), one-sided."""
    from scipy.stats import beta

    return float(beta.ppf(1 - confidence, agreeing, pieces - agreeing + 1)) if agreeing else 0.0


def _sample(config: CascadeConfig, documents: Artifact, out: Output) -> list[Piece]:
    cutter = Cutter(out.path)
    sample = []
    for document in sample_documents(documents, (), config.sample, CHARACTERS, others=True):
        pieces = cutter.pieces(document.text)
        if pieces:
            number = min(range(len(pieces)), key=lambda number: draw(f"{document.id}/{number}", "piece"))
            sample.append(Piece(document.id, pieces[number]))
    return sample


def _train(config: CascadeConfig, examples: Sequence[Example], out: Output) -> dict[str, Any]:
    """Train on examples into first/, and return the counts."""
    (out.path / FIRST).mkdir()
    inner = replace(out, path=out.path / FIRST, scratch=out.scratch / FIRST, counts={}, facts={})
    inner.scratch.mkdir(exist_ok=True)
    try:
        train_classifier(config.training, examples, inner)
    except SourceError as error:
        raise SourceError(
            f"The first model of the cascade can't be trained on {len(examples):,} pieces: {error.message}",
            "Raise first.sample, set first.cut so that pieces fall on both sides of it, or leave `first` out.",
        ) from error
    return inner.counts


def _odds(folder: Path, pieces: Sequence[Piece]) -> Float64:
    return load_scorer(folder).log_odds(pa.array([piece.text for piece in pieces], pa.string()))[0]


def _cut(config: CascadeConfig, sureness: Float64, agrees: Bool, scores: Float64, among: Bool) -> Side | None:
    """How sure the first model must be on a side, and the mean score of the pieces settled there, or None if it can't
    settle any."""
    sure, right, values = sureness[among], agrees[among], scores[among]
    order = np.sort(sure)[::-1]
    widest = 0
    for start in range(STARTS):
        size = least(config) << start
        while size <= len(order):
            inside = sure >= order[size - 1]
            bound = lower_bound(int(right[inside].sum()), int(inside.sum()), _confidence(config))
            if bound < config.agreement:
                break
            widest = max(widest, size)
            size += max(1, len(order) // STEPS)
    if not widest:
        return None
    threshold = order[widest - 1]
    return Side(float(threshold), float(values[sure >= threshold].mean()))


def _report(
    config: CascadeConfig,
    pieces: Sequence[Piece],
    high: Bool,
    training_counts: dict[str, Any],
    cuts: dict[str, Side | None],
    out: Output,
) -> None:
    """Report the share settled, and the agreement, on pieces that neither trained the model nor chose its cuts."""
    _, settled = FirstModel(out.path / FIRST).settle([piece.text for piece in pieces])
    as_high = _odds(out.path / FIRST, pieces) >= (cuts["high"].odds if cuts["high"] else math.inf)
    rows = []
    for name, side, reached in (("low", cuts["low"], settled & ~as_high), ("high", cuts["high"], settled & as_high)):
        count, agreeing = int(reached.sum()), int((reached & (high == as_high)).sum())
        rows.append(
            {
                "settled as": name,
                "from log-odds": round(side.odds, 4) if side else None,
                "score given": round(side.score, 4) if side else None,
                "share of held-out pieces": round(count / max(1, len(pieces)), 4),
                "agreement": round(agreeing / count, 4) if count else None,
                "at least": round(lower_bound(agreeing, count, config.confidence), 4) if count else None,
            }
        )
    out.table("Cascade", rows)
    both = int(settled.sum())
    out.count(
        first_auc=training_counts["auc"],
        first_held_out=len(pieces),
        first_settled=round(both / max(1, len(pieces)), 4),
        **({"first_agreement": round(int((settled & (high == as_high)).sum()) / both, 4)} if both else {}),
    )
