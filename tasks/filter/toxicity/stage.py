"""Two stages: the toxicity classifier, and the scores of every document under it."""

from __future__ import annotations

import functools
from pathlib import Path

from storage.artifact import Artifact
from storage.errors import SourceError
from storage.remembered import remembered_digest
from tasks.filter.side_files import write_signals
from tasks.filter.toxicity.config import PackageModelConfig, ToxicityConfig, TrainedModelConfig
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.text.packages import package_version

PACKAGE = "alt-profanity-check"


def fingerprints(config: PackageModelConfig | TrainedModelConfig) -> dict[str, str]:
    """The package's version, or digests of the labelled files. Raises SourceError for a missing one."""
    if isinstance(config, PackageModelConfig):
        return {PACKAGE: package_version(PACKAGE)}
    found = {}
    for file in config.files:
        path = Path(file.path).expanduser()
        if not path.is_file():
            raise SourceError(f"There is no file {file.path}.", "Check the paths under `toxicity`.")
        found[file.path] = remembered_digest(path)
    return found


@stage(version=1, part_of="filter", runtime=("data", "compute"), sources=fingerprints)
def toxicity_model(config: PackageModelConfig | TrainedModelConfig, documents: Artifact, out: Output) -> None:
    """A classifier of toxic text: fastText (Joulin et al. 2016) trained on labelled files and clean documents, with
    Platt's calibration and precision by threshold; or the weights in the package `alt-profanity-check`.

    Writes model.bin and calibration.json, or words.txt and weights.npy.
    """
    from tasks.filter.toxicity.package import export_package
    from tasks.filter.toxicity.train import train_toxicity

    if isinstance(config, PackageModelConfig):
        export_package(out)
    else:
        train_toxicity(config, documents, out)


@stage(version=2, name="toxicity", part_of="filter", runtime=("data", "compute"))
def toxicity_signals(config: ToxicityConfig, documents: Artifact, model: Artifact, out: Output) -> None:
    """`toxicity_score`: the mean score of the paragraphs, weighted by length, so that one strong word does not make a
    long
    speech toxic; `toxicity_paragraph`: the highest score. Null for a text without words."""
    from tasks.filter.toxicity.measure import measure_toxicity

    write_signals(functools.partial(measure_toxicity, config, model.path), documents, out, threads=True)
