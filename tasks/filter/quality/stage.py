"""Two stages: the quality classifier, and the score of every document under it."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.fasttext_model.labelled import digests
from tasks.filter.quality.config import QualityConfig, QualityModelConfig
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output


def fingerprints(config: QualityModelConfig) -> dict[str, str]:
    """The digests of the labelled files. Raises SourceError for a missing one."""
    return digests(config.files, "quality")


@stage(version=2, part_of="filter", runtime=("data", "compute"), sources=fingerprints)
def quality_model(config: QualityModelConfig, documents: Artifact, out: Output) -> None:
    """Train a fastText classifier (Joulin et al. 2016) of good against ordinary text, as DCLM does (Li et al.
    2024, section 4.4).

    Writes model.bin (fastText's own format) and calibration.json; counts attempts, the final learning rate, and
    accuracy and area under the ROC curve on held-out examples.
    """
    from tasks.filter.quality.train import train_quality

    train_quality(config, documents, out)


@stage(version=2, name="quality", part_of="filter", runtime=("data", "compute"))
def quality_signals(config: QualityConfig, documents: Artifact, model: Artifact, out: Output) -> None:
    """`quality_score`: the probability that a document is good text, at the class ratio of the training set. Null
    for a text without words."""
    from tasks.filter.quality.measure import measure_quality

    write_signals(functools.partial(measure_quality, model.path), documents, out, threads=True)
