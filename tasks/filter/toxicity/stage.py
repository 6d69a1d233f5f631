"""Two stages: the toxicity classifier, and the scores of every document under it."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.classifier.config import ClassifierConfig
from tasks.filter.classifier.source import fingerprints as classifier_fingerprints
from tasks.filter.fasttext_model.labelled import digests
from tasks.filter.side_files import write_signals
from tasks.filter.toxicity.config import PackageModelConfig, ToxicityConfig, TrainedModelConfig
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.text.packages import package_version

PACKAGES = ("alt-profanity-check", "tox-block")


def fingerprints(config: PackageModelConfig | TrainedModelConfig | ClassifierConfig) -> dict[str, str]:
    """The packages' versions, or digests of the labelled files or of the classifier. Raises SourceError."""
    if isinstance(config, PackageModelConfig):
        return {package: package_version(package) for package in PACKAGES}
    if isinstance(config, ClassifierConfig):
        return classifier_fingerprints(config)
    return digests(config.files, "toxicity")


@stage(version=3, part_of="filter", runtime=("data", "compute"), sources=fingerprints)
def toxicity_model(
    config: PackageModelConfig | TrainedModelConfig | ClassifierConfig, documents: Artifact, out: Output
) -> None:
    """Make or take a classifier of toxic text, one of:

    - fastText (Joulin et al. 2016) trained on labelled files and clean documents, with Platt's calibration, and
      precision by threshold on held-out texts and documents: writes model.bin and calibration.json
    - a cascade of the models in the packages `alt-profanity-check` and `tox-block`: writes words.txt, weights.npy and
      folds.json (the linear model), lstm_words.txt and lstm.npz, and base_rate.json
    - a transformers sequence classifier: writes model/ and scorer.json
    """
    from tasks.filter.classifier.signal_model import make_classifier
    from tasks.filter.toxicity.package import export_package
    from tasks.filter.toxicity.train import train_toxicity

    if isinstance(config, PackageModelConfig):
        export_package(config, out)
    elif isinstance(config, ClassifierConfig):
        make_classifier(config, documents, out)
    else:
        train_toxicity(config, documents, out)


@stage(version=5, name="toxicity", part_of="filter", runtime=("data", "compute"))
def toxicity_signals(config: ToxicityConfig, documents: Artifact, model: Artifact, out: Output) -> None:
    """Score documents. Columns: `toxicity_score`, the expected toxic share of the text (the mean score of its pieces,
    weighted by length), and `toxicity_piece`, the highest score. Null for a text without words."""
    score_texts(config, documents, model, out)


def score_texts(config: ToxicityConfig, documents: Artifact, model: Artifact, out: Output) -> None:
    """Write the scores of documents under a model of `toxicity_model`."""
    from tasks.filter.classifier.workers import score_signals
    from tasks.filter.toxicity.measure import measure_toxicity

    measure = functools.partial(measure_toxicity, config, model.path)
    if isinstance(config.model, ClassifierConfig):
        score_signals(measure, documents, out)
    else:
        write_signals(measure, documents, out, releases_gil=True)
