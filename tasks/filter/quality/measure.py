"""Quality as a signal: the classifier, its training, and the score of every document under it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import pyarrow as pa
from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from storage.artifact import Artifact
from tasks.filter.classifier.config import ClassifierConfig, of_probability
from tasks.filter.classifier.source import fingerprints as classifier_fingerprints
from tasks.filter.fasttext_model.config import LabelledFile, TrainingConfig
from tasks.filter.fasttext_model.labelled import Example, digests, read_labelled
from tasks.filter.fasttext_model.sample import sample_documents
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.config import StageConfig
from tasks.stage.output import Output

if TYPE_CHECKING:
    from tasks.filter.classifier.workers import Placement

SCHEMA = pa.schema([("quality_score", pa.float64())])


class QualityModelConfig(StageConfig):
    """Examples of good and ordinary text: sources of the pipeline's own documents, labelled texts, or both."""

    kind: Literal["trained"] = "trained"
    positive: list[str] = Field([], description="sources of good text, which the corpus should resemble")
    negative: list[str] = Field(
        [],
        description="sources of ordinary text. If empty, all sources that are not positive, or none if only labelled "
        "texts are given",
    )
    files: list[LabelledFile] = Field([], description="labelled texts, where positive means good")
    sample: int = Field(20_000, ge=50, description="maximum documents per class, chosen by the hash of their ID")
    characters: int = Field(
        2000,
        ge=100,
        description="characters at the beginning of each document to train on. Scoring uses the whole text",
    )
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="fastText's parameters")

    @model_validator(mode="after")
    def _learns_from_something(self) -> Self:
        if not self.positive and not self.files:
            raise ValueError("nothing to learn from: list sources of good text in positive, or labelled texts in files")
        return self


def _kind(model: Any) -> str:
    kind = model.get("kind", "trained") if isinstance(model, dict) else getattr(model, "kind", "trained")
    return str(kind)


AnyQualityModel = Annotated[
    Annotated[QualityModelConfig, Tag("trained")] | Annotated[ClassifierConfig, Tag("classifier")],
    Discriminator(_kind),
    AfterValidator(of_probability),
]


class QualityConfig(StageConfig):
    """Quality as a signal."""

    model: AnyQualityModel = Field(description="the classifier")


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

    if isinstance(config, ClassifierConfig):
        make_classifier(config, documents, out)
    else:
        train_quality(config, documents, out)


@stage(version=4, name="quality", part_of="filter", runtime=("data", "compute"))
def quality_signals(config: QualityConfig, documents: Artifact, model: Artifact, out: Output) -> None:
    """Score documents. Column: `quality_score`, the probability that a document is good text, at the class ratio of the
    training set, or a transformers classifier's score. Null for a text without words."""
    from tasks.filter.classifier.workers import score_signals

    measure = functools.partial(measure_quality, model.path)
    if isinstance(config.model, ClassifierConfig):
        score_signals(measure, documents, out)
    else:
        write_signals(measure, documents, out, releases_gil=True)


def measure_quality(model: Path, texts: pa.Array, where: Placement | None = None) -> pa.RecordBatch:
    """The score of each text under the model in this folder, null for a text without words. A transformers classifier
    scores on the device `where` (None: the CPU)."""
    from tasks.filter.classifier.scorer import is_classifier, open_classifier
    from tasks.filter.fasttext_model.scorer import load_scorer

    device = where.here() if where else "cpu"
    scorer = open_classifier(model, device) if is_classifier(model) else load_scorer(model)
    scores, words = scorer.score(texts)
    return pa.record_batch([pa.array(scores, mask=words == 0)], SCHEMA)


def train_quality(config: QualityModelConfig, documents: Artifact, out: Output) -> None:
    """Choose examples, train, calibrate. A text in both classes counts as good, and a labelled text as labelled. Raises
    ConfigError, SourceError."""
    from tasks.filter.fasttext_model.train import train_classifier

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
