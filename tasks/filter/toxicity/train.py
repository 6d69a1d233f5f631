"""Training the toxicity classifier: labelled files, and the pipeline's own documents as clean text."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from storage.artifact import Artifact
from tasks.filter.fasttext_model.labelled import Example, read_labelled
from tasks.filter.fasttext_model.sample import Sample, draw, sample_documents
from tasks.filter.fasttext_model.train import train_classifier
from tasks.filter.toxicity.config import TrainedModelConfig
from tasks.filter.toxicity.held_out import report_documents
from tasks.filter.toxicity.measure import pieces
from tasks.stage.output import Output

PIECES = 2  # per clean document


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
