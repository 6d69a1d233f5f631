"""Training the quality classifier: the beginnings of good and ordinary documents are its examples."""

from __future__ import annotations

from storage.artifact import Artifact
from tasks.filter.fasttext_model.sample import sample_documents
from tasks.filter.fasttext_model.train import Example, train_classifier
from tasks.filter.quality.config import QualityModelConfig
from tasks.stage.output import Output


def train_quality(config: QualityModelConfig, documents: Artifact, out: Output) -> None:
    """Choose, train, calibrate. A text in both classes counts as good. Raises ConfigError, SourceError."""
    size, characters = config.sample, config.characters
    good = sample_documents(documents, config.positive, size, characters)
    ordinary = sample_documents(
        documents, config.negative or config.positive, size, characters, others=not config.negative
    )
    examples = [
        Example(found.id, positive, found.text)
        for side, positive in ((ordinary, False), (good, True))
        for found in side
    ]
    train_classifier(config.training, examples, out)
