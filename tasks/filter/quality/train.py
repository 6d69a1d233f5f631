"""Training the quality classifier on the beginnings of good and ordinary texts."""

from __future__ import annotations

from storage.artifact import Artifact
from tasks.filter.fasttext_model.labelled import Example, read_labelled
from tasks.filter.fasttext_model.sample import sample_documents
from tasks.filter.fasttext_model.train import train_classifier
from tasks.filter.quality.config import QualityModelConfig
from tasks.stage.output import Output


def train_quality(config: QualityModelConfig, documents: Artifact, out: Output) -> None:
    """Choose examples, train, calibrate. A text in both classes counts as good, and a labelled text as labelled. Raises
    ConfigError, SourceError."""
    size, characters = config.sample, config.characters
    examples: list[Example] = []
    if config.positive or config.negative:
        named = config.negative or config.positive
        ordinary = sample_documents(documents, named, size, characters, others=not config.negative)
        examples += [Example(document.id, False, document.text) for document in ordinary]
    if config.positive:
        good = sample_documents(documents, config.positive, size, characters)
        examples += [Example(document.id, True, document.text) for document in good]
    examples += [
        example._replace(text=example.text[:characters]) for file in config.files for example in read_labelled(file)
    ]
    train_classifier(config.training, examples, out)
