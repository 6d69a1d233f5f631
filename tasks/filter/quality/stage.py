"""Two stages: the quality classifier, and the score of every document under it."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.classifier.config import ClassifierConfig
from tasks.filter.classifier.source import fingerprints as classifier_fingerprints
from tasks.filter.fasttext_model.labelled import digests
from tasks.filter.quality.config import QualityConfig, QualityModelConfig
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output


def fingerprints(config: QualityModelConfig | ClassifierConfig) -> dict[str, str]:
    """The digests of the labelled files, or of a classifier's files. Raises SourceError for a missing file."""
    return classifier_fingerprints(config) if isinstance(config, ClassifierConfig) else digests(config.files, "quality")


@stage(version=3, part_of="filter", runtime=("data", "compute"), sources=fingerprints)
def quality_model(config: QualityModelConfig | ClassifierConfig, documents: Artifact, out: Output) -> None:
    """Train a fastText classifier (Joulin et al. 2016) that separates good from ordinary text, as DCLM does (Li et al.
    2024, section 4.4), or take a sequence classifier in transformers.

    Training writes model.bin (fastText's own format) and calibration.json. It counts attempts, the final learning rate,
    and accuracy and area under the ROC curve on held-out examples.
    """
    from tasks.filter.classifier.signal_model import make_classifier
    from tasks.filter.quality.train import train_quality

    if isinstance(config, ClassifierConfig):
        make_classifier(config, documents, out)
    else:
        train_quality(config, documents, out)


@stage(version=4, name="quality", part_of="filter", runtime=("data", "compute"))
def quality_signals(config: QualityConfig, documents: Artifact, model: Artifact, out: Output) -> None:
    """Score documents. Column: `quality_score`, the probability that a document is good text, at the class ratio of the
    training set, or a transformers classifier's score. Null for a text without words."""
    from tasks.filter.classifier.workers import score_signals
    from tasks.filter.quality.measure import measure_quality

    measure = functools.partial(measure_quality, model.path)
    if isinstance(config.model, ClassifierConfig):
        score_signals(measure, documents, out)
    else:
        write_signals(measure, documents, out, releases_gil=True)
