"""The model of a signal: a classifier's files, and what is computed for it from the corpus and from labelled texts."""

from __future__ import annotations

from storage.artifact import Artifact
from storage.errors import DamagedArtifact, make_again
from tasks.base.source import files_of
from tasks.filter.classifier.calibrate import calibrate
from tasks.filter.classifier.cascade import train_first
from tasks.filter.classifier.config import ClassifierConfig
from tasks.filter.classifier.scorer import CONFIG, MODEL
from tasks.filter.classifier.source import check_score, source_of
from tasks.filter.classifier.stage import classifier
from tasks.shards.incremental import link
from tasks.stage.output import Output


def make_classifier(config: ClassifierConfig, documents: Artifact, out: Output) -> None:
    """Write model/ and scorer.json. With `first`, also write the fast model in first/, and tabulate how much it
    settles. With `labelled`, tabulate precision by threshold. Raises ConfigError, SourceError, TrainingError."""
    files = out.obtain(classifier, source_of(config))
    (out.path / MODEL).mkdir()
    for path in files_of(files.path):
        files.check_bytes(path)
        if not link(path, out.path / MODEL / path.name):
            raise DamagedArtifact(f"{path.name} of {files.location or files.path} is gone.", make_again("classifier"))
    check_score(config, out.path / MODEL)
    scoring = config.model_copy(update={"first": None, "labelled": []})
    (out.path / CONFIG).write_text(scoring.model_dump_json() + "\n")
    if config.first is not None:
        train_first(config.first, documents, out)
    if config.labelled:
        calibrate(config, out)
    out.count(model=config.named)
