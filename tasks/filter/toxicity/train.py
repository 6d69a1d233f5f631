"""Training the toxicity classifier: labelled files, and the pipeline's own documents as clean text."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.artifact import Artifact
from storage.errors import SourceError
from storage.shards.documents import document_id
from storage.shards.lines import parse_json
from tasks.filter.fasttext_model.sample import Sample, draw, sample_documents
from tasks.filter.fasttext_model.train import Example, train_classifier
from tasks.filter.toxicity.config import LabelledFile, TrainedModelConfig
from tasks.filter.toxicity.measure import paragraphs
from tasks.stage.output import Output

PARAGRAPHS = 2  # per clean document
LONGEST_FIELD = 1 << 24  # characters per field of a CSV file; Python's own limit is 131,072


def train_toxicity(config: TrainedModelConfig, documents: Artifact, out: Output) -> None:
    """Read, train, calibrate. Raises SourceError, ConfigError."""
    examples = [example for file in config.files for example in read_labelled(file)]
    if config.clean_sources:
        clean = sample_documents(documents, config.clean_sources, config.clean_sample, config.characters)
        examples += [example for found in clean for example in clean_paragraphs(found, config.paragraph_bytes)]
    train_classifier(config.training, examples, out)


def clean_paragraphs(document: Sample, most: int) -> Iterator[Example]:
    """Two paragraphs of a document, chosen by hash: scoring works on paragraphs, and most are as short as a post."""
    parts, _, _ = paragraphs(pa.array([document.text], pa.string()), most)
    named = [(f"{document.id}/{number}", text) for number, text in enumerate(parts.to_pylist())]
    for name, text in sorted(named, key=lambda pair: draw(pair[0], "paragraph"))[:PARAGRAPHS]:
        yield Example(name, False, text)


def read_labelled(file: LabelledFile) -> Iterator[Example]:
    """The texts of a file with their classes. Raises SourceError for a file or row that is not as described."""
    path = Path(file.path).expanduser()
    rows = {".csv": _read_csv, ".jsonl": _read_lines}.get(path.suffix)
    if rows is None:
        raise SourceError(f"{file.path} is neither .csv nor .jsonl.", "Convert it.")
    toxic = 0
    for number, row in enumerate(rows(path), 1):
        text, label = row.get(file.text_column), row.get(file.label_column)
        if not isinstance(text, str) or label is None:
            raise SourceError(
                f"{file.path}, row {number}: no {file.text_column} or no {file.label_column}.",
                "Check the names of the columns.",
            )
        positive = str(label) in file.toxic
        toxic += positive
        yield Example(document_id(text), positive, text)
    if not toxic:
        raise SourceError(f"{file.path} has no row labelled {' or '.join(file.toxic)}.", "Check `toxic` and the file.")


def _read_csv(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(LONGEST_FIELD)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{path} is not a CSV file in UTF-8: {error}.", "Convert it.") from error


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            try:
                row = parse_json(line)
            except ValueError as error:
                raise SourceError(f"{path} has a line that is not JSON: {error}.", "Convert it.") from error
            if not isinstance(row, dict):
                raise SourceError(f"{path} has a line that is not an object.", "Convert it.")
            yield row
