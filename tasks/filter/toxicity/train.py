"""Training the toxicity classifier: labelled files, and the pipeline's own documents as clean text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from storage.artifact import Artifact
from tasks.filter.fasttext_model.calibration import area_under_curve, threshold_for, threshold_table
from tasks.filter.fasttext_model.labelled import Example, read_labelled
from tasks.filter.fasttext_model.sample import Sample, draw, sample_documents
from tasks.filter.fasttext_model.scorer import load_scorer
from tasks.filter.fasttext_model.train import train_classifier
from tasks.filter.toxicity.config import TrainedModelConfig
from tasks.filter.toxicity.measure import pieces, score_documents
from tasks.stage.output import Output

PIECES = 2  # per clean document

DOCUMENTS = 1000  # of each class
TEXTS = 8  # per document
TOXIC = (3, 4, 6, 8)  # of them, in turns


def train_toxicity(config: TrainedModelConfig, documents: Artifact, out: Output) -> None:
    """Read, train, calibrate, and evaluate the model on documents composed of held-out texts. Raises SourceError,
    ConfigError."""
    examples = [example for file in config.files for example in read_labelled(file)]
    if config.clean_sources:
        clean = sample_documents(documents, config.clean_sources, config.clean_sample, config.characters)
        examples += [example for document in clean for example in clean_pieces(document, config.piece_bytes)]
    tested = train_classifier(config.training, examples, out, config.base_rate)
    report_documents(config, tested, out)


def clean_pieces(document: Sample, most: int) -> Iterator[Example]:
    """Yield two pieces of a document, chosen by hash. Scoring is by pieces too, most of them as short as a post."""
    parts, _, _ = pieces(pa.array([document.text], pa.string()), most)
    named = [(f"{document.id}/{number}", text) for number, text in enumerate(parts.to_pylist())]
    for name, text in sorted(named, key=lambda pair: draw(pair[0], "paragraph"))[:PIECES]:
        yield Example(name, False, text)


def report_documents(config: TrainedModelConfig, tested: Sequence[Example], out: Output) -> None:
    """Count the area under the curve over such documents, and the lowest `max_score` that reaches the target precision.
    Tabulate precision and recall by threshold."""
    texts = [*make_documents(tested, TOXIC), *make_documents(tested, (0,))]
    positive = np.arange(len(texts)) < DOCUMENTS
    load_scorer.cache_clear()  # the same working folder may have held an earlier model
    scores, _, _ = score_documents(load_scorer(out.path), pa.array(texts, pa.string()), config.piece_bytes)
    threshold = threshold_for(scores, positive, config.base_rate, config.target_precision)
    out.count(document_auc=round(area_under_curve(scores, positive), 4))
    if threshold is None:
        out.warn(f"no max_score reaches a precision of {config.target_precision:g} on held-out documents")
    else:
        out.count(max_score_for_target_precision=round(threshold, 4))
    out.table("Documents: threshold and expected precision", threshold_table(scores, positive, config.base_rate))


def make_documents(tested: Sequence[Example], toxic: Sequence[int]) -> list[str]:
    """Compose documents with these numbers of toxic texts, in turns."""
    sides = {side: [example.text for example in tested if example.positive == side] for side in (True, False)}
    documents = []
    for number in range(DOCUMENTS):
        parts = [
            _pick(sides[place < toxic[number % len(toxic)]], f"{toxic}/{number}/{place}") for place in range(TEXTS)
        ]
        order = sorted(range(TEXTS), key=lambda place: draw(f"{number}/{place}", "order"))
        documents.append("\n\n".join(parts[place] for place in order))
    return documents


def _pick(texts: Sequence[str], name: str) -> str:
    return texts[int(draw(name, "held-out document") * len(texts))]
